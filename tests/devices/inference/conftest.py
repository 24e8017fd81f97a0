from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .dummy import Dummy
from .room import Room


@pytest.fixture
async def dummy() -> AsyncIterator[Dummy]:
    async with Dummy() as dummy:
        yield dummy


@pytest.fixture
async def room(dummy: Dummy, tmp_path: Path) -> AsyncIterator[Room]:
    async with Room(tmp_path, dummy) as room:
        yield room
