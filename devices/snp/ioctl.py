"""Reports through the SEV guest device. Source: Linux include/uapi/linux/sev-guest.h."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hyperbeam.verify.snp import report as reports

from .collect import Collected, unavailable

SNP_GET_REPORT = 0xC0205300
SNP_GET_EXT_REPORT = 0xC0205302
TABLE_SIZE = 4 * 4096
"""Bytes for the host's certificates: whole pages, the most that the kernel takes."""
_MESSAGE_VERSION = 1
_RESPONSE = 4000
_RESPONSE_HEAD = 32

Ioctl = Callable[[int, int, Any], int]


class ReportRequest(ctypes.Structure):
    """struct snp_report_req, 96 bytes."""

    _fields_ = (
        ("user_data", ctypes.c_uint8 * 64),
        ("vmpl", ctypes.c_uint32),
        ("rsvd", ctypes.c_uint8 * 28),
    )


class ExtendedRequest(ctypes.Structure):
    """struct snp_ext_report_req, 112 bytes."""

    _fields_ = (
        ("data", ReportRequest),
        ("certs_address", ctypes.c_uint64),
        ("certs_len", ctypes.c_uint32),
    )


class GuestRequest(ctypes.Structure):
    """struct snp_guest_request_ioctl, 32 bytes."""

    _fields_ = (
        ("msg_version", ctypes.c_uint8),
        ("req_data", ctypes.c_uint64),
        ("resp_data", ctypes.c_uint64),
        ("fw_error", ctypes.c_uint32),
        ("vmm_error", ctypes.c_uint32),
    )


class GuestDevice:
    """Asks the device at `path`. `ioctl`: the system call, (file, request, struct)."""

    name = "ioctl"

    def __init__(self, path: Path, ioctl: Ioctl | None = None) -> None:
        self.path = path
        self._ioctl = ioctl or _system_ioctl

    def available(self) -> str:
        """Why this machine does not offer it; "" where it does."""
        if not self.path.exists():
            return f"there is no {self.path}: this is no confidential VM of AMD's kind"
        if not os.access(self.path, os.R_OK | os.W_OK):
            return f"{self.path} may not be used by this user"
        return ""

    def collect(self, report_data: bytes) -> Collected:
        """A report over 64 bytes and what certificates the host gives."""
        file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return self._collect(file, report_data)
        finally:
            os.close(file)

    def _collect(self, file: int, report_data: bytes) -> Collected:
        response = ctypes.create_string_buffer(_RESPONSE)
        table = ctypes.create_string_buffer(TABLE_SIZE)
        extended = ExtendedRequest(
            data=_request(report_data), certs_address=ctypes.addressof(table), certs_len=TABLE_SIZE
        )
        try:
            self._ioctl(file, SNP_GET_EXT_REPORT, _asked(extended, response))
        except OSError:
            # Hosts whose certificates do not fit, or who have none, still let the CPU sign.
            plain = _request(report_data)
            asked = _asked(plain, response)
            try:
                self._ioctl(file, SNP_GET_REPORT, asked)
            except OSError as error:
                codes = f"firmware {asked.fw_error:#x}, host {asked.vmm_error:#x}"
                raise unavailable(f"{self.path}: {error.strerror or error} ({codes})") from None
            return Collected(_report(response.raw), b"")
        return Collected(_report(response.raw), table.raw)


def _request(report_data: bytes) -> ReportRequest:
    return ReportRequest(user_data=(ctypes.c_uint8 * 64)(*report_data), vmpl=0)


def _asked(request: ctypes.Structure, response: ctypes.Array[ctypes.c_char]) -> GuestRequest:
    return GuestRequest(
        msg_version=_MESSAGE_VERSION,
        req_data=ctypes.addressof(request),
        resp_data=ctypes.addressof(response),
    )


def _report(response: bytes) -> bytes:
    """The report in a MSG_REPORT_RSP: status, size, reserved, then it."""
    status = int.from_bytes(response[:4], "little")
    size = int.from_bytes(response[4:8], "little")
    if status:
        raise unavailable(f"the CPU refused with status {status:#x}")
    if size != reports.SIZE:
        raise unavailable(f"the CPU gave a report of {size} bytes")
    return response[_RESPONSE_HEAD : _RESPONSE_HEAD + size]


def _system_ioctl(file: int, request: int, argument: ctypes.Structure) -> int:
    result: int = fcntl.ioctl(file, request, argument)
    return result
