import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from devices.sev_gpu.config import SevGpuConfig
from devices.sev_gpu.nvattest import NvattestCollector, last_object
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
        ({"result_code": 256, "result_message": "no GPU", "evidences": []}, "256.*no GPU"),
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
    with pytest.raises(Unavailable, match=r"nvattest gave no evidence within 1\.5 s"):
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
    with pytest.raises(Unavailable, match="said over 8 MiB"):
        await collector(path).collect(bytes.fromhex(NONCE))


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


def test_the_last_object_is_the_answer() -> None:
    assert last_object(b'{"a": 1}\n{"b": 2}') == {"b": 2}
    assert last_object(b'  {"a": {"b": 1}}\n\n') == {"a": {"b": 1}}
    assert last_object(b'{"a": 1} trailing') is None
    assert last_object(b"\xff" + b"[" * 100_000) is None
    assert last_object(b'{"a":' * 100_000) is None


def _wait_for_its_end(pid: int) -> None:
    while _alive(pid):
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
