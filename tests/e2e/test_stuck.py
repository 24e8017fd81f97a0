"""Nodes whose devices do not start or stop: they say so, and signals end them."""

import signal
from pathlib import Path

import httpx
import pytest

from .process import NodeProcess, serve
from .test_lifecycle import children, gone, until

STUCK = """
import asyncio
import time

from hyperbeam import Device, key


class Stuck(Device):
    name = "stuck@1.0"
    single = {single}

    async def start(self):
        print("it starts", flush=True)
        {start}

    async def stop(self):
        {stop}

    @key
    async def waits(self, base, request):
        await asyncio.sleep(600)

    @key
    def sleeps(self, base, request):
        time.sleep(600)

    @key
    async def fails(self, base, request):
        raise OSError("no service there")

    @key
    async def hold(self, base, request):
        print("it holds", flush=True)
        time.sleep(600)
"""
WAITS = "await asyncio.sleep(600)"
WAITS_IN_WORKERS = "await asyncio.sleep(600 if self.node.role == 'worker' else 0)"
IGNORES = """while self.node.role != "supervisor":
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass"""
HOLDS = "time.sleep(600)"


def start(
    home: Path,
    *arguments: str,
    starting: str = "pass",
    stopping: str = "pass",
    single: bool = False,
) -> NodeProcess:
    folder = home.parent / "devices"
    folder.mkdir()
    text = STUCK.format(start=starting, stop=stopping, single=single)
    (folder / "stuck.py").write_text(text)
    return serve("--home", home, "--device-path", folder, *arguments)


def ended_by_one_signal(node: NodeProcess) -> str:
    """What it printed; nothing of it is left, and nothing was cut off."""
    below = children(node)
    node.signal(signal.SIGTERM)
    assert node.wait(20) == 0
    until(lambda: gone(below))
    said = "\n".join(node.lines)
    assert not any(word in said for word in ("Traceback", "never retrieved", "killed"))
    return said


@pytest.mark.parametrize(
    ("workers", "starting", "single"),
    [("1", WAITS, False), ("2", WAITS, True), ("2", WAITS_IN_WORKERS, False)],
)
def test_a_device_that_does_not_start_is_named_and_one_signal_ends_the_node(
    home: Path, workers: str, starting: str, single: bool
) -> None:
    node = start(home, "--workers", workers, starting=starting, single=single)
    node.wait_for(r"still waiting for device stuck@1\.0 to start, for 3 s now")
    assert ended_by_one_signal(node).endswith("stopped")


@pytest.mark.parametrize(
    ("workers", "called"), [("1", "waits"), ("1", "sleeps"), ("2", "waits"), ("2", "sleeps")]
)
def test_a_start_hook_that_does_not_end_is_named_and_one_signal_ends_the_node(
    home: Path, workers: str, called: str
) -> None:
    hook = f"hooks.start=stuck@1.0/{called}"
    node = start(home, "--workers", workers, "--set", hook)
    node.wait_for(rf"still waiting for the hook start, stuck@1\.0/{called}, for 3 s now")
    assert "stopped" in ended_by_one_signal(node)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_start_hook_that_raises_is_one_line(home: Path, workers: str) -> None:
    node = start(home, "--workers", workers, "--set", "hooks.start=stuck@1.0/fails")
    assert node.wait(20) == 2
    said = [line for line in node.lines if line != "it starts" and " INFO " not in line]
    assert said == ["hyperbeam: the hook start, stuck@1.0/fails: OSError: no service there"]


def test_a_key_in_a_thread_that_does_not_end_does_not_hold_up_the_end(home: Path) -> None:
    node = start(home, "--set", "http.drain=0").listening()
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(node.url + "/~stuck@1.0/sleeps", timeout=1)
    node.signal(signal.SIGTERM)
    assert node.wait(20) == 0


@pytest.mark.parametrize("starting", [IGNORES, HOLDS])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_two_signals_end_one_that_does_not_let_go(
    home: Path, starting: str, number: signal.Signals
) -> None:
    node = start(home, starting=starting)
    node.wait_for(r"still waiting for device stuck@1\.0 to start")
    status = again(node, number)
    assert status == 128 + number
    assert node.lines[-1] == "ended at once, while it waited for device stuck@1.0 to start"


def test_two_signals_end_all_processes(home: Path) -> None:
    node = start(home, "--workers", "2", starting=IGNORES)
    for _ in range(3):
        node.wait_for("it starts")
    below = children(node)
    assert len(below) == 2
    assert again(node, signal.SIGTERM) == 128 + signal.SIGTERM
    until(lambda: gone(below))


def test_three_signals_end_a_node_whose_device_does_not_stop(home: Path) -> None:
    node = start(home, stopping=WAITS).listening()
    node.signal(signal.SIGTERM)
    node.wait_for(r"still waiting for device stuck@1\.0 to stop")
    assert again(node, signal.SIGTERM) == 128 + signal.SIGTERM
    assert node.lines[-1] == "ended at once, while it waited for device stuck@1.0 to stop"


def test_two_signals_end_a_node_whose_event_loop_is_held(home: Path) -> None:
    node = start(home).listening()
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(node.url + "/~stuck@1.0/hold", timeout=1)
    node.wait_for("it holds")
    assert again(node, signal.SIGINT) == 128 + signal.SIGINT


def again(node: NodeProcess, number: signal.Signals) -> int:
    """The exit status after the signal, sent until the node has ended."""

    def ended() -> bool:
        if node.process.poll() is None:
            node.signal(number)
        return node.process.poll() is not None

    until(ended)
    return node.wait()
