import asyncio
import json
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from devices.sev_gpu import process
from devices.sev_gpu.collect import never, unavailable
from devices.sev_gpu.config import SevGpuConfig
from devices.sev_gpu.nvattest import NvattestCollector
from devices.sev_gpu.output import last_object
from devices.sev_gpu.process import Trial
from hyperbeam import Unavailable

from .tools import NONCE, entry, printing, program


def collector(path: str, **settings: Any) -> NvattestCollector:
    return NvattestCollector(SevGpuConfig(backend="nvattest", nvattest=path, **settings))


async def test_evidence_comes_in_the_shape_that_verifiers_take(tmp_path: Path) -> None:
    answer = {"evidences": [entry(), entry()], "result_code": 0, "result_message": "Ok"}
    log = "[warning] {not json}\n[2026-01-01] collecting\n{\n"
    found = await collector(printing(tmp_path / "nvattest", answer, before=log)).collect(
        bytes.fromhex(NONCE)
    )
    assert len(found) == 2
    assert set(found[0]) == {"arch", "nonce", "evidence", "certificate"}
    assert found[0]["arch"] == "HOPPER" and found[0]["nonce"] == NONCE


async def test_it_is_asked_for_the_nonce_and_runs_in_an_empty_folder(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    body = f"""
with open({str(seen)!r}, "w") as file:
    json.dump([sys.argv[1:], os.getcwd(), os.listdir()], file)
print(json.dumps({{"evidences": [{entry()!r}], "result_code": 0}}))
"""
    await collector(program(tmp_path / "nvattest", body)).collect(bytes.fromhex(NONCE))
    arguments, folder, files = json.loads(seen.read_text())
    assert arguments[-2:] == ["--nonce", NONCE] and "collect-evidence" in arguments
    assert files == [] and not Path(folder).exists()  # noqa: ASYNC240


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"result_code": 256, "result_message": "no GPU", "evidences": []}, "result 256;"),
        ({"result_code": "<b>\n"}, "result unknown;"),
        ({"result_code": 10**4000}, "result unknown;"),
        ({"result_code": True}, "result unknown;"),
        ({"result_code": 0, "evidences": []}, "no evidence"),
        ({"result_code": 0}, "no evidence"),
        ({"result_code": 0, "evidences": [7]}, "entry 0"),
        ({"result_code": 0, "evidences": [entry("cd" * 32)]}, "another nonce"),
        ({"result_code": 0, "evidences": [{**entry(), "certificate": ""}]}, "certificate"),
        ([1], "no JSON"),
    ],
)
async def test_the_json_counts_and_not_the_status(tmp_path: Path, answer: Any, said: str) -> None:
    # 256 & 255 is 0: a failure may end with status 0.
    path = printing(tmp_path / "nvattest", answer, status=0)
    with pytest.raises(Unavailable, match=said) as caught:
        await collector(path).collect(bytes.fromhex(NONCE))
    assert caught.value.error == "attestation_unavailable"


async def test_a_status_that_is_not_zero_with_good_json_is_good(tmp_path: Path) -> None:
    path = printing(tmp_path / "nvattest", {"evidences": [entry()], "result_code": 0}, status=3)
    assert await collector(path).collect(bytes.fromhex(NONCE))


async def test_no_process_is_left_after_the_time_limit(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    body = f"""
child = os.fork()
if child == 0:
    time.sleep(600)
with open({str(pids)!r}, "w") as file:
    file.write(f"{{os.getpid()}} {{child}}")
time.sleep(600)
"""
    path = program(tmp_path / "nvattest", body)
    call = asyncio.create_task(collector(path, timeout=1.5).collect(bytes.fromhex(NONCE)))
    said = await asyncio.to_thread(pids.read_text)
    with pytest.raises(Unavailable, match=r"nvattest gave no answer within 1\.5 s"):
        await call
    for pid in map(int, said.split()):
        await asyncio.to_thread(_wait_for_its_end, pid)


async def test_no_process_is_left_after_a_caller_who_left(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    body = f"open({str(pids)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    path = program(tmp_path / "nvattest", body)
    call = asyncio.create_task(collector(path).collect(bytes.fromhex(NONCE)))
    pid = int(await asyncio.to_thread(pids.read_text))
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled() and not _alive(pid)


async def test_endless_output_is_cut(tmp_path: Path) -> None:
    path = program(tmp_path / "nvattest", "while True: sys.stdout.write('x' * 65536)")
    with pytest.raises(Unavailable, match="said over 4 MiB"):
        await collector(path).collect(bytes.fromhex(NONCE))


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ("", 3, "nvattest ended with status 3 and no JSON; see the node's log"),
        (
            json.dumps({"result_code": 7, "result_message": "\x1b[31mprivate\r\nwords\x1b[0m"}),
            7,
            "nvattest failed with result 7; see the node's log",
        ),
    ],
)
async def test_its_own_words_go_to_the_log_alone_and_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: str, status: int, said: str
) -> None:
    body = f"""
sys.stderr.write("\\x1b[31mprivate\\r\\nwords\\x1b[0m\\n")
print({answer!r})
sys.exit({status})
"""
    path = program(tmp_path / "nvattest", body)
    with caplog.at_level(logging.WARNING), pytest.raises(Unavailable) as caught:
        await collector(path).collect(bytes.fromhex(NONCE))
    assert caught.value.detail == said
    (line,) = (record.getMessage() for record in caplog.records)
    assert "private words" in line and line.isprintable()


@pytest.mark.parametrize("session", ["", "os.setsid()"])
async def test_a_child_that_holds_the_output_does_not_hold_up_the_answer(
    tmp_path: Path, session: str
) -> None:
    pids = tmp_path / "pids"
    body = f"""
print(json.dumps({{"evidences": [{entry()!r}], "result_code": 0}}), flush=True)
ready, told = os.pipe()
child = os.fork()
if child == 0:
    {session or "pass"}
    os.write(told, b".")
    time.sleep(600)
os.read(ready, 1)
open({str(pids)!r}, "w").write(str(child))
"""
    path = program(tmp_path / "nvattest", body)
    try:
        found = await collector(path).collect(bytes.fromhex(NONCE))
    finally:
        pid = int(pids.read_text())
        if session:
            os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(_wait_for_its_end, pid)
    assert found[0]["nonce"] == NONCE


async def test_what_is_printed_is_read_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def read(output: bytes) -> Any:
        threads.append(threading.current_thread())
        return last_object(output)

    monkeypatch.setattr(process, "last_object", read)
    path = printing(tmp_path / "nvattest", {"evidences": [entry()], "result_code": 0})
    await collector(path).collect(bytes.fromhex(NONCE))
    assert threads and threading.current_thread() not in threads


async def test_reading_what_is_printed_counts_to_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(process, "last_object", lambda output: over.wait(60))
    path = printing(tmp_path / "nvattest", {})
    try:
        with pytest.raises(Unavailable, match="gave no answer within 1 s"):
            await collector(path, timeout=1.0).collect(bytes.fromhex(NONCE))
    finally:
        over.set()


async def test_why_it_is_not_available(tmp_path: Path) -> None:
    missing = collector(str(tmp_path / "nvattest"))
    assert "there is no such program" in await missing.available()
    path = printing(tmp_path / "nvattest", {})
    assert await collector(path).available() == ""
    automatic = NvattestCollector(SevGpuConfig(nvattest=path), driver=tmp_path / "nvidiactl")
    assert "no NVIDIA driver" in await automatic.available()
    (tmp_path / "nvidiactl").touch()
    assert await automatic.available() == ""
    broken = tmp_path / "broken"
    broken.write_text("#!/nonexistent\n")
    broken.chmod(0o755)
    with pytest.raises(Unavailable, match="cannot be started"):
        await collector(str(broken)).collect(bytes.fromhex(NONCE))
    assert "cannot be started" in await collector(str(broken)).available()
    failing = program(tmp_path / "failing", "sys.exit(127)")
    assert "status 127" in await collector(failing).available()


async def test_it_is_tried_once_whoever_asks(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    body = f"open({str(runs)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')"
    nvattest = collector(program(tmp_path / "nvattest", body))
    assert await asyncio.gather(*(nvattest.available() for _ in range(5))) == [""] * 5
    assert runs.read_text() == "version\n"


async def test_a_failed_trial_is_remembered_for_a_while() -> None:
    outcomes: list[str | Unavailable] = ["broken", ""]
    runs = 0

    async def run(limit: float) -> str:
        nonlocal runs
        runs += 1
        outcome = outcomes[min(runs, len(outcomes)) - 1]
        if isinstance(outcome, str):
            return outcome
        raise outcome

    remembered = Trial(run)
    assert [await remembered.problem() for _ in range(3)] == ["broken"] * 3 and runs == 1
    runs, mended = 0, Trial(run, again=0)
    assert [await mended.problem() for _ in range(3)] == ["broken", "", ""] and runs == 2
    runs, outcomes = 0, [unavailable("too slow")]
    slow = Trial(run)
    for _ in range(2):
        with pytest.raises(Unavailable, match="too slow") as caught:
            await slow.problem()
        assert "retry-after" in caught.value.headers
    assert runs == 1
    runs, outcomes = 0, [never("cannot be started")]
    assert await Trial(run).problem() == "cannot be started"


def _wait_for_its_end(pid: int) -> None:
    while _alive(pid):
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
