"""The two collectors, over a kernel that is made up; the layouts are the kernel's."""

import asyncio
import ctypes
import errno
import os
import threading
from pathlib import Path

import pytest

from devices.snp.configfs import TRIES, ConfigFS
from devices.snp.ioctl import (
    SNP_GET_EXT_REPORT,
    SNP_GET_REPORT,
    ExtendedRequest,
    GuestDevice,
    GuestRequest,
    ReportRequest,
)
from devices.snp.threads import Lane
from hyperbeam import Unavailable
from hyperbeam.verify.snp.report import parse
from hyperbeam.verify.snp.table import parse as parse_table
from tests.hyperbeam.verify.snp.simulated import Processor

from .kernel import FakeConfigFS, FakeGuest, tables

DATA = bytes(range(64))


def test_configfs(tmp_path: Path) -> None:
    processor = Processor()
    fake = FakeConfigFS(tmp_path, processor, auxiliary=tables(processor))
    assert fake.available() == ""
    collected = fake.collect(DATA)
    assert parse(collected.report).report_data == DATA
    assert set(parse_table(collected.table)) == {"vcek", "ask", "ark"}
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_without_certificates(tmp_path: Path) -> None:
    fake = FakeConfigFS(tmp_path, Processor(), auxiliary=None)
    assert fake.collect(DATA).table == b""


def test_somebody_else_in_the_same_entry(tmp_path: Path) -> None:
    fake = FakeConfigFS(tmp_path, Processor(), strangers=TRIES - 1)
    assert parse(fake.collect(DATA).report).report_data == DATA
    fake.strangers = TRIES
    with pytest.raises(Unavailable, match="somebody else"):
        fake.collect(DATA)
    assert list(tmp_path.iterdir()) == []


def test_why_configfs_is_not_offered(tmp_path: Path) -> None:
    assert "no confidential VM" in ConfigFS(tmp_path / "missing").available()
    assert "does not work" in ConfigFS(tmp_path).available()
    tdx = FakeConfigFS(tmp_path / "tdx", Processor(), provider="tdx_guest")
    tdx.root.mkdir()
    assert "tdx_guest" in tdx.available()


def test_inblob_is_never_made_by_us(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ConfigFS(tmp_path).write(tmp_path, "inblob", DATA)


def test_the_layouts_are_the_kernels() -> None:
    assert ctypes.sizeof(ReportRequest) == 96
    assert ReportRequest.vmpl.offset == 64
    assert ctypes.sizeof(ExtendedRequest) == 112
    assert ExtendedRequest.certs_address.offset == 96
    assert ExtendedRequest.certs_len.offset == 104
    assert ctypes.sizeof(GuestRequest) == 32
    offsets = {name: getattr(GuestRequest, name).offset for name, _ in GuestRequest._fields_}
    assert offsets == {
        "msg_version": 0,
        "req_data": 8,
        "resp_data": 16,
        "fw_error": 24,
        "vmm_error": 28,
    }
    # _IOWR('S', 0 and 2, struct snp_guest_request_ioctl)
    for number, request in ((0, SNP_GET_REPORT), (2, SNP_GET_EXT_REPORT)):
        assert request == 3 << 30 | 32 << 16 | ord("S") << 8 | number


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "sev-guest"
    path.touch()
    return path


def test_ioctl(path: Path) -> None:
    processor = Processor(key="vlek")
    fake = FakeGuest(processor, tables(processor))
    device = GuestDevice(path, fake)
    assert device.available() == ""
    collected = device.collect(DATA)
    assert parse(collected.report).report_data == DATA
    assert parse_table(collected.table)["vlek"]
    assert fake.asked == [SNP_GET_EXT_REPORT]


def test_a_host_that_refuses_certificates(path: Path) -> None:
    fake = FakeGuest(Processor(), refuse=(SNP_GET_EXT_REPORT,))
    collected = GuestDevice(path, fake).collect(DATA)
    assert parse(collected.report).report_data == DATA
    assert collected.table == b""
    assert fake.asked == [SNP_GET_EXT_REPORT, SNP_GET_REPORT]


def test_what_ioctl_cannot_have(path: Path) -> None:
    fake = FakeGuest(Processor(), refuse=(SNP_GET_EXT_REPORT, SNP_GET_REPORT))
    with pytest.raises(Unavailable, match="firmware 0x16, host 0x2"):
        GuestDevice(path, fake).collect(DATA)
    fake = FakeGuest(Processor())
    fake.status = 0x16
    with pytest.raises(Unavailable, match="status 0x16"):
        GuestDevice(path, fake).collect(DATA)
    fake.status, fake.size = 0, 4000
    with pytest.raises(Unavailable, match="4000 bytes"):
        GuestDevice(path, fake).collect(DATA)


def test_the_real_system_call_on_what_is_no_guest_device(path: Path) -> None:
    before = lowest_free()
    with pytest.raises(Unavailable, match="no CPU evidence"):
        GuestDevice(path).collect(DATA)
    assert lowest_free() == before, "a file was left open"


def lowest_free() -> int:
    file = os.open(os.devnull, os.O_RDONLY)
    os.close(file)
    return file


def test_why_ioctl_is_not_offered(tmp_path: Path) -> None:
    assert "no confidential VM" in GuestDevice(tmp_path / "missing").available()


async def test_a_call_that_never_returns_holds_up_nobody_for_long() -> None:
    lane = Lane()
    free = threading.Event()
    with pytest.raises(Unavailable) as caught:
        await lane.call(lambda: free.wait(30), 0.05)
    assert caught.value.error == "attestation_unavailable"
    with pytest.raises(Unavailable, match=r"within 0\.05 s"):
        await lane.call(lambda: 1, 0.05)
    free.set()
    assert await lane.call(lambda: 2, 10) == 2


async def test_calls_come_one_at_a_time_and_errors_reach_their_caller() -> None:
    lane = Lane()
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> int:
        inside.append(number)
        most.append(len(inside))
        inside.remove(number)
        if number == 3:
            raise OSError(errno.EIO, "broken")
        return number

    found = await asyncio.gather(
        *(lane.call(lambda n=n: work(n), 10) for n in range(8)),
        return_exceptions=True,
    )
    assert [item for item in found if isinstance(item, int)] == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(found[3], OSError)
    assert max(most) == 1


async def test_a_caller_who_leaves_frees_the_lane_when_the_call_returns() -> None:
    lane = Lane()
    begun, free = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow() -> None:
        loop.call_soon_threadsafe(begun.set)
        free.wait(30)

    leaving = asyncio.create_task(lane.call(slow, 30))
    await begun.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    free.set()
    assert await lane.call(lambda: 5, 10) == 5
