import sys
from pathlib import Path
from typing import Any

import pytest

from devices.sev_gpu.config import SevGpuConfig
from devices.sev_gpu.sdk import SdkCollector
from hyperbeam import Unavailable

from .tools import NONCE, entry, program

SDK = """
import enum, os, sys

print("the SDK says hello")
open("left-behind.log", "w").write(os.getcwd())


class Devices(enum.IntFlag):
    GPU = 2


class Environment(enum.IntEnum):
    REMOTE = 5


class Attestation:
    def set_name(self, name): pass

    def set_nonce(self, nonce):
        self.nonce = nonce

    def add_verifier(self, device, environment, url, policy):
        assert (device, environment, url) == (Devices.GPU, Environment.REMOTE, "")

    def get_evidence(self, OPTIONS):
        print("collecting")
        BODY
"""
GIVES = 'return [{**ENTRY, "nonce": self.nonce}]'


def interpreter(folder: Path, body: str = GIVES, options: str = "options") -> str:
    """A Python that has an nv-attestation-sdk of our own."""
    package = folder / "sdk" / "nv_attestation_sdk"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    text = SDK.replace("OPTIONS", options).replace("BODY", body).replace("ENTRY", repr(entry()))
    (package / "attestation.py").write_text(text)
    run = f"""
code = "import sys; sys.path.insert(0, {str(package.parent)!r}); sys.argv = sys.argv[1:]; " \\
    "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
os.execv({sys.executable!r}, [{sys.executable!r}, "-I", "-c", code, sys.argv[-1]])
"""
    return program(folder / "python", run)


def collector(python: str, **settings: Any) -> SdkCollector:
    return SdkCollector(SevGpuConfig(backend="nv-attestation-sdk", sdk_python=python, **settings))


@pytest.mark.parametrize("options", ["options", ""])
async def test_evidence_comes_from_the_other_interpreter(tmp_path: Path, options: str) -> None:
    sdk = collector(interpreter(tmp_path, options=options))
    assert await sdk.available() == ""
    (found,) = await sdk.collect(bytes.fromhex(NONCE))
    assert found["nonce"] == NONCE and found["arch"] == "HOPPER"
    assert "nv_attestation_sdk" not in sys.modules
    assert not Path("left-behind.log").exists()  # noqa: ASYNC240


async def test_what_the_sdk_raises_goes_to_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sdk = collector(interpreter(tmp_path, "raise Exception('no GPU\\x1b[31m\\nin CC mode')"))
    with pytest.raises(Unavailable, match="raised an error; see the node's log") as caught:
        await sdk.collect(bytes.fromhex(NONCE))
    assert "no GPU" not in caught.value.detail
    (line,) = (record.getMessage() for record in caplog.records)
    assert line == "nv-attestation-sdk: Exception: no GPU in CC mode"


async def test_an_sdk_that_exits_or_hangs(tmp_path: Path) -> None:
    leaving = collector(interpreter(tmp_path / "a", "sys.exit(3)"))
    with pytest.raises(Unavailable, match="raised an error"):
        await leaving.collect(bytes.fromhex(NONCE))
    killed = collector(interpreter(tmp_path / "b", "os._exit(4)"))
    with pytest.raises(Unavailable, match="status 4 and no answer"):
        await killed.collect(bytes.fromhex(NONCE))
    hanging = collector(interpreter(tmp_path / "c", "import time; time.sleep(600)"), timeout=1.0)
    with pytest.raises(Unavailable, match="within 1 s"):
        await hanging.collect(bytes.fromhex(NONCE))


async def test_threads_of_the_sdk_do_not_hold_up_the_answer(tmp_path: Path) -> None:
    body = (
        f"import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); {GIVES}"
    )
    sdk = collector(interpreter(tmp_path, body))
    assert len(await sdk.collect(bytes.fromhex(NONCE))) == 1


async def test_an_environment_without_the_sdk(tmp_path: Path) -> None:
    sdk = collector(sys.executable)
    assert "has no nv-attestation-sdk" in await sdk.available()
    with pytest.raises(Unavailable, match="raised an error"):
        await sdk.collect(bytes.fromhex(NONCE))
    other = collector(program(tmp_path / "other", "sys.exit(5)"))
    assert "no Python that runs" in await other.available()
    assert "sdk_python" in await SdkCollector(SevGpuConfig()).available()
    gone = SdkCollector(SevGpuConfig(sdk_python=str(tmp_path / "python")))
    assert "names no program" in await gone.available()
