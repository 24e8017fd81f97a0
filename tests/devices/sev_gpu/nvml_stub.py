"""NVIDIA's driver library over a simulator: `nvml_stub.c` asks, this answers."""

from __future__ import annotations

import shutil
import socketserver
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from devices.sev_gpu.simulate import Simulator

LIBRARY = "libnvidia-ml.so.1"
SOCKET = "NVML_STUB_SOCKET"
QUESTION_BYTES = 34

_SOURCE = Path(__file__).with_suffix(".c")
_ARCHITECTURES = {"HOPPER": 9, "BLACKWELL": 10}


def build(folder: Path) -> Path:
    """The library, compiled into `folder`. Skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the NVML stub needs a C compiler, and there is neither cc nor gcc")
    library = folder / LIBRARY
    options = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARY}")
    subprocess.run([compiler, *options, "-o", library, _SOURCE], check=True)
    return library


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    stub: NvmlStub


class NvmlStub:
    """What the library says; use it in a `with`. All may be changed at any time.

    `cc`, `devtools`: as the driver reports them. `hanging`: indices of GPUs that never answer
    for a report, `failing`: of those that give none. `asked`: an index for each report that
    was asked for, `waits` is set once a GPU hangs.
    """

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.cc = True
        self.devtools = False
        self.hanging: set[int] = set()
        self.failing: set[int] = set()
        self.asked: list[int] = []
        self.waits = threading.Event()
        self._closing = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="nvml")
        self._server = _Server(str(Path(self._folder.name) / "socket"), _Handler)
        self._server.stub = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def environment(self, library: Path) -> dict[str, str]:
        """What a process needs to find `library` and this."""
        return {"LD_LIBRARY_PATH": str(library.parent), SOCKET: str(self._server.server_address)}

    def install(self, library: Path, patch: pytest.MonkeyPatch) -> None:
        """Make this process's NVML bindings use `library`, as long as `patch` lasts."""
        import ctypes

        import pynvml

        patch.setenv(SOCKET, str(self._server.server_address))
        patch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
        patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def answer(self, question: bytes) -> bytes:
        """The reply to a question of the library, b"" for an error."""
        what, index, nonce = chr(question[0]), question[1], question[2:]
        devices = self.simulator.devices
        if what == "n":
            return bytes([len(devices)])
        if what == "s":
            return bytes([1, self.cc, self.devtools])
        if what == "d":
            return self.simulator.driver.encode()
        if index >= len(devices):
            return b""
        device = devices[index]
        if what == "r":
            return self._report(index, nonce)
        return {
            "a": bytes([_ARCHITECTURES[device.arch]]),
            "c": device.pem,
            "m": b"SIMULATED GPU",
            "u": f"GPU-{device.chain[0].certificate.serial_number:x}".encode(),
        }[what]

    def _report(self, index: int, nonce: bytes) -> bytes:
        self.asked.append(index)
        if index in self.hanging:
            self.waits.set()
            self._closing.wait()
            return b""
        return b"" if index in self.failing else self.simulator.devices[index].report(nonce)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._folder.cleanup()


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        question = self.rfile.read(QUESTION_BYTES)
        if len(question) == QUESTION_BYTES:
            self.wfile.write(self.server.stub.answer(question))
