from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from .process import ROOT, NodeProcess, end_all

GREETER = '''
from hyperbeam import Device, NotFound, key


class Greeter(Device):
    """Says hello: GET /~greeter@1.0/hello&name=Ada"""

    name = "greeter@1.0"

    @key
    async def hello(self, base, request):
        who = request.get("name") or base.get("name")
        if not who:
            raise NotFound("name")
        return {"body": f"Hello, {who}"}
'''


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """The README's first command, from another folder, with a home and a device of its own."""
    folder = tmp_path_factory.mktemp("node")
    devices = folder / "my-devices"
    devices.mkdir()
    (devices / "greeter.py").write_text(GREETER)
    settings = ["--port", "0", "--home", folder / "home", "--device-path", devices]
    running = NodeProcess([ROOT / "scripts" / "run", *settings], cwd=folder)
    try:
        yield running.ready()
    finally:
        status = running.stop()
    assert status == 0, "\n".join(running.lines)


@pytest.fixture(scope="session")
def attested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """The README's node with simulated GPUs."""
    folder = tmp_path_factory.mktemp("attested")
    settings = ["--port", "0", "--home", folder / "home", "--set", "sev_gpu.backend=simulated"]
    settings += ["--set", "sev_gpu.simulated_gpus=2"]
    running = NodeProcess([ROOT / "scripts" / "run", *settings], cwd=folder)
    try:
        yield running.ready()
    finally:
        status = running.stop()
    assert status == 0, "\n".join(running.lines)


@pytest.fixture
def client(node: NodeProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=node.url, timeout=120) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"
