"""A kernel's two ways to a report, over a processor that exists in this process only."""

from __future__ import annotations

import ctypes
import errno
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from devices.snp.configfs import ConfigFS
from devices.snp.ioctl import (
    SNP_GET_EXT_REPORT,
    SNP_GET_REPORT,
    ExtendedRequest,
    GuestRequest,
    ReportRequest,
)
from hyperbeam.verify.snp.table import KINDS
from tests.hyperbeam.verify.snp.simulated import Processor

GUIDS = {kind: guid for guid, kind in KINDS.items()}


def table(certificates: dict[str, bytes]) -> bytes:
    """The host's table as the GHCB specification has it."""
    at = 24 * (len(certificates) + 1)
    head, body = b"", b""
    for kind, content in certificates.items():
        place = (at + len(body)).to_bytes(4, "little") + len(content).to_bytes(4, "little")
        head += GUIDS[kind] + place
        body += content
    return head + bytes(24) + body


def tables(processor: Processor) -> bytes:
    leaf, issuer, root = processor.certificates()
    return table({processor.key: leaf, "ask": issuer, "ark": root})


class FakeConfigFS(ConfigFS):
    """A real folder whose entries get their files as the kernel gives them."""

    def __init__(
        self,
        root: Path,
        processor: Processor,
        *,
        auxiliary: bytes | None = b"",
        provider: str = "sev_guest",
        strangers: int = 0,
    ) -> None:
        super().__init__(root)
        self.processor = processor
        self.auxiliary = auxiliary
        self.provider = provider
        self.strangers = strangers
        self.sign: Callable[[bytes], bytes] = processor.report
        self.hold: threading.Event | None = None

    def make(self, entry: Path) -> None:
        super().make(entry)
        (entry / "provider").write_text(self.provider + "\n")
        (entry / "generation").write_text("7\n")
        (entry / "inblob").touch(0o200)
        (entry / "outblob").touch()
        if self.auxiliary is not None:
            (entry / "auxblob").write_bytes(self.auxiliary)

    def write(self, entry: Path, name: str, data: bytes) -> None:
        if self.hold is not None:
            self.hold.wait(10)
        super().write(entry, name, data)
        writes = 1
        if self.strangers:
            self.strangers -= 1
            writes = 2
        (entry / "generation").write_text(f"{7 + writes}\n")
        (entry / "outblob").write_bytes(self.sign((entry / "inblob").read_bytes()))

    def remove(self, entry: Path) -> None:
        assert entry.parent == self.root
        shutil.rmtree(entry)


class FakeGuest:
    """Answers the system calls of the guest device. `refuse`: request numbers that fail."""

    def __init__(
        self, processor: Processor, host: bytes = b"", refuse: tuple[int, ...] = ()
    ) -> None:
        self.processor = processor
        self.host = host
        self.refuse = refuse
        self.status = 0
        self.size = 0x4A0
        self.asked: list[int] = []

    def __call__(self, file: int, request: int, argument: GuestRequest) -> int:
        self.asked.append(request)
        assert (argument.msg_version, ctypes.sizeof(argument)) == (1, 32)
        if request in self.refuse:
            argument.fw_error, argument.vmm_error = 0x16, 2
            raise OSError(errno.EIO, "Input/output error")
        if request == SNP_GET_EXT_REPORT:
            extended = ExtendedRequest.from_address(argument.req_data)
            assert extended.certs_len % 4096 == 0
            ctypes.memmove(extended.certs_address, self.host, len(self.host))
            asked = extended.data
        else:
            assert request == SNP_GET_REPORT
            asked = ReportRequest.from_address(argument.req_data)
        report = self.processor.report(bytes(asked.user_data), vmpl=asked.vmpl)
        head = self.status.to_bytes(4, "little") + self.size.to_bytes(4, "little") + bytes(24)
        ctypes.memmove(argument.resp_data, head + report, len(head + report))
        return 0
