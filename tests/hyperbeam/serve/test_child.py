from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest

from hyperbeam.serve.child import FOLDER_VARIABLE, GIVE_UP, STARTS, Child, State

ROOT = Path(__file__).parents[3]
SHM = Path("/dev/shm")
WAIT = 20.0

SERVES = """
import os, subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", os.getpid(), grandchild.pid, flush=True)
time.sleep(600)
"""
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
escaped = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("up", os.getpid(), escaped.pid, flush=True)
time.sleep(600)
"""
NODE = """
import asyncio, json, sys
from hyperbeam.serve.child import Child

async def main():
    child = Child([sys.executable, "-c", sys.argv[1]], name="orphan", on_line=lines.append)
    await child.start()
    while not lines:
        await asyncio.sleep(0.01)
    print(json.dumps({"pids": lines[0].split()[1:], "folder": str(child.folder)}), flush=True)
    if sys.argv[2] == "kill":
        await asyncio.sleep(600)

lines = []
asyncio.run(main())
"""


class Watched:
    """A child of Python code, with what it said and did."""

    def __init__(self, code: str | Sequence[str], **options: Any) -> None:
        command = [sys.executable, "-c", code] if isinstance(code, str) else list(code)
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        self.states: asyncio.Queue[State] = asyncio.Queue()
        self.child = Child(
            command,
            name="tested",
            on_line=self.lines.put_nowait,
            on_state=self.states.put_nowait,
            backoff=(0.01, 0.04),
            **options,
        )

    async def line(self) -> str:
        return await asyncio.wait_for(self.lines.get(), WAIT)

    async def until(self, wanted: State) -> list[State]:
        seen: list[State] = []
        while wanted not in seen:
            seen.append(await asyncio.wait_for(self.states.get(), WAIT))
        return seen

    async def pids(self) -> list[int]:
        return [int(pid) for pid in (await self.line()).split()[1:]]


@pytest.fixture
async def watch() -> AsyncIterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(code: str | Sequence[str], **options: Any) -> Watched:
        made.append(Watched(code, **options))
        return made[-1]

    yield make
    for watched in made:
        await watched.child.stop(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def gone(pids: Sequence[int]) -> None:
    await until(lambda: not any(alive(pid) for pid in pids))


def ps(pid: int, field: str) -> str:
    command = ["ps", "-o", f"{field}=", "-p", str(pid)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def alive(pid: int) -> bool:
    state = ps(pid, "stat")
    return bool(state) and not state.startswith("Z")


def open_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def shim_of(pid: int) -> int:
    return int(ps(pid, "ppid"))


def start_node(code: str, end: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", NODE, code, end]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


async def test_output_goes_to_the_callback_and_the_log(watch, caplog):
    caplog.set_level(logging.INFO, "hyperbeam.backend.tested")
    watched = watch(
        r"""
import os, sys
sys.stdout.buffer.write(b"one\rtwo\n\n\xff three\n" + b"x" * 20000)
sys.stdout.flush()
sys.exit(int(os.environ["STATUS"]))
""",
        env={"STATUS": str(GIVE_UP)},
    )
    await watched.child.start()
    await watched.until("failed")
    lines = watched.child.last_lines
    assert lines[:3] == ["one", "two", "\ufffd three"]
    assert set("".join(lines[3:])) == {"x"}
    assert max(map(len, lines)) <= 8192
    assert "two" in caplog.messages


async def test_only_the_last_lines_are_kept(watch):
    watched = watch(f"for i in range(200): print(i)\nraise SystemExit({GIVE_UP})")
    await watched.child.start()
    await watched.until("failed")
    assert watched.child.last_lines == [str(i) for i in range(150, 200)]


async def test_stop_ends_the_whole_group_and_removes_the_folder(watch):
    watched = watch(SERVES)
    await watched.child.start()
    pids = await watched.pids()
    folder = watched.child.folder
    assert watched.child.pid == pids[0]
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "socket").touch()
    await watched.child.stop(10)
    assert watched.child.state == "stopped"
    assert watched.child.pid is None
    assert not folder.exists()
    await gone(pids)


async def test_the_terminal_reaches_only_the_node(watch):
    watched = watch(SERVES)
    await watched.child.start()
    pids = await watched.pids()
    assert {os.getsid(pid) for pid in pids}.isdisjoint({os.getsid(0)})
    assert {os.getpgid(pid) for pid in pids}.isdisjoint({os.getpgid(0)})


async def test_what_ignores_term_is_killed_after_the_grace(watch):
    watched = watch(STUBBORN)
    await watched.child.start()
    pids = await watched.pids()
    await watched.child.stop(0.05)
    if sys.platform == "linux":
        await gone(pids)
    else:
        os.kill(pids[1], signal.SIGKILL)
        await gone(pids[:1])
    assert watched.child.state == "stopped"


async def test_the_folder_is_named_in_the_environment(watch):
    watched = watch(f"import os; print(os.environ['{FOLDER_VARIABLE}']); input()")
    await watched.child.start()
    assert await watched.line() == str(watched.child.folder)
    assert len(str(watched.child.folder)) < 80


async def test_deaths_before_it_is_ready_are_retried_ever_later_then_given_up(watch, caplog):
    caplog.set_level(logging.WARNING, "hyperbeam.backend.tested")
    watched = watch("print('no'); raise SystemExit(3)")
    await watched.child.start()
    await watched.until("failed")
    delays = [m.rsplit(" ", 2)[1] for m in caplog.messages if "starts again in" in m]
    assert delays == ["0.01", "0.02", "0.04", "0.04"][: STARTS - 1]
    assert watched.child.restarts == STARTS - 1
    assert watched.child.last_exit.reason == "ended with status 3"
    assert watched.child.last_lines[-1] == "no"
    await watched.child.stop(0)


async def test_status_78_means_do_not_try_again(watch):
    watched = watch(f"raise SystemExit({GIVE_UP})")
    await watched.child.start()
    assert await watched.until("failed") == ["starting", "failed"]


async def test_an_illegal_instruction_is_final(watch):
    watched = watch("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    await watched.child.start()
    assert await watched.until("failed") == ["starting", "failed"]
    assert watched.child.last_exit.reason == "was ended by SIGILL"


async def test_a_command_that_is_not_there(watch):
    watched = watch(["/nonexistent/program"])
    await watched.child.start()
    await watched.until("failed")
    assert "/nonexistent/program: No such file" in watched.child.last_exit.reason


async def test_one_that_was_ready_is_started_again_without_end(watch):
    watched = watch(SERVES)
    await watched.child.start()
    for restart in range(STARTS + 2):
        pids = await watched.pids()
        watched.child.ready()
        await watched.until("running")
        assert watched.child.restarts == restart
        folder = watched.child.folder
        (folder / "stale").touch()
        os.kill(pids[0], signal.SIGKILL)
        await watched.until("starting")
        await gone(pids)
        assert watched.child.folder == folder
        assert list(folder.iterdir()) == []
    assert watched.child.last_exit.reason == "was ended by SIGKILL"


async def test_a_start_that_takes_too_long_is_a_death(watch):
    watched = watch(SERVES, start_timeout=0.05)
    await watched.child.start()
    seen = await watched.until("failed")
    assert seen.count("starting") == STARTS
    assert watched.child.last_exit.reason == "was not ready within 0.05 s"


async def test_a_killed_shim_takes_the_group_with_it(watch):
    watched = watch(SERVES)
    await watched.child.start()
    pids = await watched.pids()
    os.kill(shim_of(pids[0]), signal.SIGKILL)
    await watched.until("restarting")
    await gone(pids)
    assert watched.child.last_exit.reason == "its shim was killed"


async def test_stop_while_waiting_to_start_again(watch):
    watched = Watched("raise SystemExit(1)")
    watched.child._backoff = (600.0, 600.0)
    await watched.child.start()
    await watched.until("restarting")
    await asyncio.wait_for(watched.child.stop(10), WAIT)
    assert watched.child.state == "stopped"
    assert not watched.child.folder.exists()


async def test_a_cancelled_stop_goes_on_by_itself(watch):
    watched = watch(STUBBORN)
    await watched.child.start()
    pids = await watched.pids()
    stopping = asyncio.create_task(watched.child.stop(0.2))
    await asyncio.sleep(0)
    stopping.cancel()
    await watched.until("stopped")
    await gone(pids[:1])


async def test_start_and_stop_may_be_repeated_and_leave_no_descriptor(watch):
    watched = watch(SERVES)
    await watched.child.stop(0)
    descriptors = 0
    for _ in range(3):
        await watched.child.start()
        await watched.child.start()
        pids = await watched.pids()
        shim = shim_of(pids[0])
        await asyncio.gather(watched.child.stop(5), watched.child.stop(5))
        await gone(pids)
        assert not ps(shim, "stat"), "the shim is still there, if only as a zombie"
        await asyncio.sleep(0)
        if descriptors == 0:
            descriptors = open_descriptors()
    assert open_descriptors() == descriptors


@pytest.mark.parametrize("end", ["kill", "return"])
async def test_nothing_is_left_when_the_node_is_gone(end):
    with start_node(SERVES, end) as node:
        about = json.loads(await asyncio.to_thread(node.stdout.readline))
        pids = [int(pid) for pid in about["pids"]]
        if end == "kill":
            assert all(alive(pid) for pid in pids)
            node.kill()
        await asyncio.to_thread(node.wait)
    await gone(pids)
    await until(lambda: not os.path.exists(about["folder"]))  # noqa: PTH110


async def test_what_ignores_term_does_not_outlive_a_killed_node():
    with start_node(STUBBORN, "kill") as node:
        about = json.loads(await asyncio.to_thread(node.stdout.readline))
        node.kill()
    pids = [int(pid) for pid in about["pids"]]
    if sys.platform != "linux":
        os.kill(pids.pop(), signal.SIGKILL)
    await gone(pids)


def test_it_works_on_uvloop_too():
    uvloop = pytest.importorskip("uvloop")

    async def main() -> tuple[list[str], str]:
        watched = Watched(SERVES)
        await watched.child.start()
        await gone_after_stop(watched)
        return watched.child.last_lines, watched.child.state

    async def gone_after_stop(watched: Watched) -> None:
        pids = await watched.pids()
        await watched.child.stop(5)
        await gone(pids)

    lines, state = uvloop.run(main())
    assert lines[0].startswith("up ")
    assert state == "stopped"


LEADS = """
import signal, subprocess, sys, time
from multiprocessing import shared_memory
follower = subprocess.Popen([sys.executable, "-c", '''
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("follower got TERM", flush=True))
time.sleep(600)
'''])
def end(*_):
    follower.kill()
    follower.wait()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
shared = shared_memory.SharedMemory(create=True, size=64)
print("up", shared.name, flush=True)
time.sleep(600)
"""


async def test_with_leader_only_the_command_is_told_to_end():
    child = Watched(LEADS, leader=True)
    await child.child.start()
    await child.line()
    await child.child.stop(WAIT)
    assert child.child.last_exit is None
    assert child.lines.empty() or "follower" not in child.lines.get_nowait()


def in_shm() -> set[str]:
    return {path.name for path in SHM.iterdir()}


@pytest.mark.skipif(not SHM.is_dir(), reason="there is no /dev/shm")
async def test_what_it_leaves_in_shared_memory_is_removed():
    code = LEADS.replace("follower.kill()", "import os; os.killpg(0, 9)")
    child = Watched(code, leader=True, shared_memory=True)
    await child.child.start()
    foreign = shared_memory.SharedMemory(create=True, size=64)
    try:
        ours = (await child.line()).split()[1]
        assert {ours, foreign.name} <= in_shm()
        await child.child.stop(WAIT)
        assert ours not in in_shm()
        assert foreign.name in in_shm()
    finally:
        foreign.close()
        foreign.unlink()


async def test_secrets_are_not_repeated(caplog):
    caplog.set_level(logging.DEBUG, "hyperbeam.backend.tested")
    child = Watched("print('key=s3cret, bye')", secrets=["s3cret"])
    await child.child.start()
    assert await child.line() == "key=***, bye"
    await child.child.stop(WAIT)
    assert child.child.last_lines == ["key=***, bye"] * len(child.child.last_lines)
    assert "s3cret" not in caplog.text
