from pathlib import Path

import pytest

from hyperbeam.node import Node

from ..conftest import StartNode
from .support import ME, OneHand

TABLE = '[[routes]]\ntemplate = "/x/.*"\nnode = "http://127.0.0.1:9"\n'


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The route table of `node`."""
    path = tmp_path / "routes.toml"
    path.write_text(TABLE)
    return path


@pytest.fixture
async def node(start_node: StartNode, table: Path) -> Node:
    """A node whose operator is ME."""
    return await start_node(operator=ME.address, routes=str(table))


@pytest.fixture
async def unclaimed(start_node: StartNode, table: Path) -> Node:
    return await start_node(routes=str(table))


@pytest.fixture
async def me(node: Node) -> OneHand:
    return OneHand(node, ME)
