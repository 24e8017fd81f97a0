"""What only a file shared by processes can do or suffer."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from hyperbeam.errors import ConfigError, Unavailable
from hyperbeam.store import LMDBStore

PRELUDE = """
import asyncio, os, signal, sys
from pathlib import Path
from hyperbeam.errors import HyperbeamError
from hyperbeam.store import LMDBStore
folder = Path(sys.argv[1])
def say(text):
    print(text, flush=True)
def wait():
    sys.stdin.readline()
"""


@contextmanager
def process(script: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A Python process running `script`, with pipes to talk over; killed at the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def hear(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    if not line:
        child.wait()
        assert child.stderr is not None
        raise AssertionError(child.stderr.read())
    return line


def tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


@contextmanager
def opened(folder: Path, **settings: int) -> Iterator[LMDBStore]:
    store = LMDBStore(folder, **settings)
    store.open()
    try:
        yield store
    finally:
        store.close()


async def test_a_durable_write_survives_kill_9(tmp_path: Path) -> None:
    script = """
store = LMDBStore(folder)
store.open()
async def main():
    for number in range(1000000):
        store.write(b"%d" % number, b"v%d" % number)
        await store.flush()
        say(str(number))
asyncio.run(main())
"""
    with process(script, tmp_path) as child:
        while int(acknowledged := hear(child)) < 25:
            pass
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        said = [acknowledged, *child.stdout.read().split("\n")[:-1]]
    with opened(tmp_path) as store:
        for number in range(int(said[-1]) + 1):
            assert store.read(b"%d" % number) == b"v%d" % number
        store.write(b"after", b"1")
        await store.flush()


async def test_two_processes_write_and_read_at_once(tmp_path: Path) -> None:
    script = """
store = LMDBStore(folder, map_size=1 << 20)
store.open()
say("open")
wait()
async def main():
    for number in range(300):
        store.write(b"theirs/%d" % number, b"t" * 5000)
        store.write(b"both", b"theirs")
        if number % 10 == 0:
            await store.flush()
    await store.flush()
    say("written")
    wait()
    assert all(store.read(b"ours/%d" % n) == b"o" * 5000 for n in range(300))
    say("read")
asyncio.run(main())
store.close()
"""
    with process(script, tmp_path) as child, opened(tmp_path, map_size=1 << 20) as store:
        assert hear(child) == "open"
        tell(child)
        for number in range(300):
            store.write(b"ours/%d" % number, b"o" * 5000)
            store.write(b"both", b"ours")
            if number % 10 == 0:
                await store.flush()
        await store.flush()
        assert hear(child) == "written"
        assert all(store.read(b"theirs/%d" % n) == b"t" * 5000 for n in range(300))
        assert store.list(b"") == [b"both", b"ours", b"theirs"]
        assert store.read(b"both") in (b"ours", b"theirs")
        tell(child)
        assert hear(child) == "read"


async def test_a_group_never_replaces_what_another_process_wrote(tmp_path: Path) -> None:
    script = """
store = LMDBStore(folder)
store.open()
store.write(b"g", b"theirs")
store.close()
say("written")
"""
    with opened(tmp_path) as store:
        with store._write_lock:
            store.group(b"g")
            assert store.type(b"g") == "composite"
            with process(script, tmp_path) as child:
                assert hear(child) == "written"
        await store.flush()
        assert store.read(b"g") == b"theirs"


def test_many_processes_make_one_file(tmp_path: Path) -> None:
    script = """
say("ready")
wait()
store = LMDBStore(folder / "new")
store.open()
store.write(str(os.getpid()).encode(), b"1")
store.close()
say(str(os.getpid()))
"""
    with (
        process(script, tmp_path) as one,
        process(script, tmp_path) as two,
        process(script, tmp_path) as three,
    ):
        children = [one, two, three]
        assert [hear(child) for child in children] == ["ready"] * 3
        for child in children:
            tell(child)
        names = sorted(hear(child).encode() for child in children)
    with opened(tmp_path / "new") as store:
        assert store.list(b"") == names


async def test_a_map_that_another_process_grew_is_adopted(tmp_path: Path) -> None:
    script = """
store = LMDBStore(folder, map_size=1 << 20)
store.open()
store.write(b"big", b"x" * (8 << 20))
store.close()
say("grown")
"""
    with opened(tmp_path, map_size=1 << 20) as reader:
        reader.write(b"a", b"1")
        await reader.flush()
        with process(script, tmp_path) as child:
            assert hear(child) == "grown"
        assert reader.read(b"big") == b"x" * (8 << 20)
        assert reader.list(b"") == [b"a", b"big"]

    with opened(tmp_path / "w", map_size=1 << 20) as writer:
        writer.write(b"a", b"1")
        await writer.flush()
        with process(script, tmp_path / "w") as child:
            assert hear(child) == "grown"
        writer.write(b"after", b"1")
        await writer.flush()
    with opened(tmp_path / "w") as again:
        assert again.list(b"") == [b"a", b"after", b"big"]


def test_threads_read_while_the_map_grows(tmp_path: Path) -> None:
    wrong: list[bytes | None] = []
    done = threading.Event()

    def read(store: LMDBStore) -> None:
        while not done.is_set():
            for number in range(20):
                value = store.read(b"g/%d" % number)
                if value is not None and value != b"%d" % number * 50_000:
                    wrong.append(value)
            store.list(b"g")

    with opened(tmp_path, map_size=1 << 20) as store:
        threads = [threading.Thread(target=read, args=[store]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(20):
            store.write(b"g/%d" % number, b"%d" % number * 50_000)
            asyncio.run(store.flush())
        done.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(store.list(b"g") or []) == 20


async def test_a_full_map_grows(tmp_path: Path) -> None:
    with opened(tmp_path, map_size=1 << 20) as store:
        for number in range(50):
            store.write(b"%d" % number, b"x" * 200_000)
        store.write(b"huge", b"y" * (20 << 20))
        await store.flush()
        assert store.read(b"49") == b"x" * 200_000
    with opened(tmp_path, map_size=1 << 20) as store:
        assert store.read(b"huge") == b"y" * (20 << 20)


def test_the_place_of_a_killed_reader_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperbeam.store.lmdb.READER_CHECK_INTERVAL", 0.01)
    script = """
store = LMDBStore(folder, max_readers=2)
try:
    store.open()
except HyperbeamError as error:
    say(str(error))
while store._environment is None:
    try:
        store.open()
    except HyperbeamError:
        pass
say("open")
wait()
"""
    with opened(tmp_path, max_readers=2), process(script, tmp_path) as second:
        assert hear(second) == "open"
        with process(script, tmp_path) as third:
            assert "raise max_readers" in hear(third)
            os.kill(second.pid, signal.SIGKILL)
            second.wait()
            assert hear(third) == "open"


def test_a_full_disk_is_said_and_outlived(tmp_path: Path) -> None:
    script = """
import resource
store = LMDBStore(folder)
store.open()
async def main():
    store.write(b"before", b"1")
    await store.flush()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, limits[1]))
    store.write(b"big", b"x" * 1000000)
    for attempt in range(2):
        try:
            await store.flush()
        except HyperbeamError as error:
            say(f"{error.status} {error.error} {error}")
    try:
        store.write(b"more", b"1")
    except HyperbeamError as error:
        say(f"{error.status} {error.error} {error}")
    assert store.read(b"before") == b"1" and len(store.read(b"big")) == 1000000
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await store.flush()
    store.write(b"more", b"1")
asyncio.run(main())
store.close()
say("closed")
"""
    with process(script, tmp_path) as child:
        for _ in range(3):
            assert hear(child).startswith(f"503 store_failed cannot write to the store {tmp_path}")
        assert hear(child) == "closed"
    with opened(tmp_path) as store:
        assert store.list(b"") == [b"before", b"big", b"more"]


def test_closing_on_a_full_disk_says_what_was_lost(tmp_path: Path) -> None:
    script = """
import resource
store = LMDBStore(folder)
store.open()
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, limits[1]))
store.write(b"big", b"x" * 1000000)
try:
    store.close()
except HyperbeamError as error:
    say(str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
store.open()
say(repr(store.read(b"big")))
"""
    with process(script, tmp_path) as child:
        assert hear(child).startswith("1 writes were lost: cannot write to the store")
        assert hear(child) == "None"


async def test_flush_without_sync_still_waits_for_the_disk(tmp_path: Path) -> None:
    store = LMDBStore(tmp_path, sync=False)
    store.open()
    store.write(b"a", b"1")
    await asyncio.gather(*(store.flush() for _ in range(10)))
    await store.flush()
    assert not store._pending and not store._committing
    store.close()


async def test_a_flush_that_is_cancelled_harms_no_other(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        with store._write_lock:
            store.write(b"a", b"1")
            first = asyncio.create_task(store.flush())
            second = asyncio.create_task(store.flush())
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
        await second
        assert store.read(b"a") == b"1"


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = LMDBStore(tmp_path)
    with pytest.raises(Unavailable, match="not open"):
        store.read(b"a")
    store.open()
    store.open()
    store.close()
    store.close()
    for call in (lambda: store.read(b"a"), lambda: store.write(b"a", b""), lambda: store.list(b"")):
        with pytest.raises(Unavailable, match="not open"):
            call()
    with pytest.raises(Unavailable, match="not open"):
        await store.flush()


def refused(folder: Path, **settings: int) -> str:
    with pytest.raises(ConfigError) as caught:
        LMDBStore(folder, **settings).open()
    return str(caught.value)


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    assert "map_size" in refused(tmp_path, map_size=5)
    assert "max_readers" in refused(tmp_path, max_readers=0)


@pytest.mark.parametrize("content", [b"garbage", b"garbage" * 5000])
def test_a_file_that_is_no_lmdb_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    message = refused(tmp_path)
    assert str(tmp_path / "data.mdb") in message
    assert "move it away" in message


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.write(b"a", b"x" * 1_000_000)
    os.truncate(tmp_path / "data.mdb", 500_000)
    assert "cut short" in refused(tmp_path)


def test_pages_that_were_overwritten(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in range(1000):
            store.write(b"%d" % number, b"x" * 100)
    size = (tmp_path / "data.mdb").stat().st_size
    with (tmp_path / "data.mdb").open("r+b") as file:
        file.seek(2 * 4096)
        file.write(bytes(size - 2 * 4096))
    assert "move it away" in refused(tmp_path)


def test_a_file_of_another_program(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as txn:
        txn.put(b"theirs", b"1")
    assert "another program" in refused(tmp_path)


def test_a_file_of_another_schema(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    with lmdb.open(str(tmp_path), max_dbs=1) as environment, environment.begin(write=True) as txn:
        txn.put(b"schema", b"7")
    message = refused(tmp_path)
    assert "schema version 7" in message
    assert "another folder" in message


def test_two_stores_on_one_file_in_one_process(tmp_path: Path) -> None:
    with opened(tmp_path):
        assert "home of its own" in refused(tmp_path)
    with opened(tmp_path):
        pass


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused(tmp_path / "file")
    assert str(tmp_path / "file") in refused(tmp_path / "file" / "store")


@contextmanager
def as_a_plain_user() -> Iterator[None]:
    """Root may write anywhere: be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        with as_a_plain_user():
            assert "cannot be written" in refused(folder)
            assert "cannot be written" in refused(folder / "store")
        folder.chmod(0o700)


def test_no_room_at_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        message = refused(tmp_path / "store")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "no room on the disk" in message
