import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperbeam import ConfigError
from hyperbeam.routing import RouteTable
from hyperbeam.routing import reload as reloading
from hyperbeam.routing.reload import RouteWatcher

ONE = '[[routes]]\ntemplate = "/one"\nnode = "http://h"\n'
TWO = '[[routes]]\ntemplate = "/two"\nnode = "http://h"\n'


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading, "INTERVAL", 0.005)


class Taken:
    """What a watcher has given, one table after the other."""

    def __init__(self) -> None:
        self.tables: asyncio.Queue[str] = asyncio.Queue()
        self.errors: asyncio.Queue[str] = asyncio.Queue()
        self.refuse = ""

    async def apply(self, table: RouteTable) -> None:
        if self.refuse:
            raise ConfigError(self.refuse)
        self.tables.put_nowait(str(table.routes[0].template))

    def watch(self, path: Path) -> RouteWatcher:
        watcher = RouteWatcher(path, self.apply, self.errors.put_nowait)
        watcher.start()
        return watcher


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "routes.toml"
    path.write_text(ONE)
    return path


def save(path: Path, text: str) -> None:
    path.write_text(text)


def remove(path: Path) -> None:
    path.unlink()


def in_place(path: Path) -> None:
    path.write_text(TWO)


def renamed(path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_text(TWO)
    new.replace(path)


def made_again(path: Path) -> None:
    path.unlink()
    path.write_text(TWO)


def same_size_and_time(path: Path) -> None:
    stat = path.stat()
    path.write_text(TWO)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("way", [in_place, renamed, made_again, same_size_and_time])
async def test_a_table_is_taken_however_it_is_saved(
    file: Path, way: Callable[[Path], None]
) -> None:
    taken = Taken()
    watcher = taken.watch(file)
    way(file)
    assert await taken.tables.get() == "/two"
    assert watcher.error == ""
    await watcher.stop()


async def test_a_broken_table_changes_nothing_until_it_is_mended(file: Path) -> None:
    taken = Taken()
    watcher = taken.watch(file)
    for broken, said in (
        ("[[routes]\n", "line 1"),
        (ONE + "colour = 1", "colour"),
        ("", "no routes"),
    ):
        save(file, broken)
        assert said in await taken.errors.get()
        assert str(file) in watcher.error
        save(file, TWO)
        assert await taken.errors.get() == ""
        assert await taken.tables.get() == "/two"
    remove(file)
    assert "gone" in await taken.errors.get()
    save(file, ONE)
    assert await taken.tables.get() == "/one"
    taken.refuse = "no such device"
    save(file, TWO)
    while "no such device" not in watcher.error:
        await taken.errors.get()
    assert taken.tables.empty()
    await watcher.stop()


async def test_it_is_read_at_once_when_told(file: Path) -> None:
    taken = Taken()
    watcher = RouteWatcher(file, taken.apply)
    await watcher.reload()
    assert await taken.tables.get() == "/one"
    save(file, "x")
    with pytest.raises(ConfigError):
        await watcher.reload()
    assert watcher.error
