"""Where certificates come from: the host's table, a folder, a key distribution service."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from devices.snp.certificates import Certificates
from hyperbeam import ConfigError
from hyperbeam.http.upstream import Upstream
from hyperbeam.verify.snp.certificate import read
from hyperbeam.verify.snp.kds import chain_url, vcek_url
from hyperbeam.verify.snp.report import Report, parse
from tests.hyperbeam.verify.snp.simulated import Processor
from tests.hyperbeam.verify.snp.test_certificate import pem

from .kernel import table, tables

FIXTURES = Path(__file__).parents[2] / "hyperbeam" / "verify" / "snp" / "fixtures"
GENUINE = parse((FIXTURES / "milan_report.bin").read_bytes())
VCEK = (FIXTURES / "milan_vcek.der").read_bytes()


class Service:
    """A key distribution service on loopback: `files` by path and query, else 404."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.address = ""
        self.tasks: list[asyncio.Task[None]] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        with contextlib.suppress(ConnectionError):
            while line := (await reader.readline()).decode():
                while (await reader.readline()).strip():
                    pass
                path = line.split()[1]
                self.asked.append(path)
                found = self.files.get(path)
                status = "404 Not Found" if found is None else "200 OK"
                body = found or b"nothing"
                head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def running() -> AsyncIterator[Service]:
    service = Service()
    server = await asyncio.start_server(service.handle, "127.0.0.1", 0)
    service.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield service
    finally:
        server.close()
        await asyncio.gather(*service.tasks)


async def names(
    report: Report, host: bytes = b"", folder: str | Path = "", service: str = ""
) -> list[str]:
    upstream = Upstream()
    try:
        found = await Certificates(str(folder), service, upstream, 5.0).of(report, host)
    finally:
        await upstream.close()
    return [read(der).name for der in found]


WHOLE = ["SEV-VCEK", "SEV-Milan", "ARK-Milan"]


async def test_from_the_hosts_table() -> None:
    processor = Processor()
    report = parse(processor.report())
    assert await names(report, tables(processor)) == WHOLE
    assert await names(report, table({"vcek": processor.leaf()})) == ["SEV-VCEK"]
    assert await names(report) == []
    stranger = table({"vcek": Processor(name="another").leaf(), "ask": processor.issuer()})
    assert await names(report, stranger) == []


async def test_what_comes_with_the_package_completes_a_milan_chain() -> None:
    assert await names(GENUINE, table({"vcek": VCEK})) == WHOLE


async def test_from_a_folder(tmp_path: Path) -> None:
    processor = Processor()
    (tmp_path / "vcek.der").write_bytes(processor.leaf())
    (tmp_path / "chain.PEM").write_bytes(pem(processor.issuer()) + pem(processor.root()))
    (tmp_path / "old.crt").write_bytes(Processor(name="another").leaf())
    (tmp_path / "broken.pem").write_bytes(b"-----BEGIN CERTIFICATE-----")
    (tmp_path / "notes.txt").write_text("no certificate")
    (tmp_path / "folder.der").mkdir()
    assert await names(parse(processor.report()), folder=tmp_path) == WHOLE
    with pytest.raises(ConfigError, match=r"snp\.certificates"):
        await names(GENUINE, folder=tmp_path / "missing")


async def test_from_the_service() -> None:
    processor = Processor("Genoa")
    report = parse(processor.report())
    async with running() as service:
        chain = pem(processor.issuer()) + pem(processor.root())
        service.files[chain_url("", "Genoa", "vcek")] = chain
        service.files[vcek_url("", report, "Genoa")] = processor.leaf()
        upstream = Upstream()
        certificates = Certificates("", service.address, upstream, 5.0)
        for _ in range(2):
            found = await certificates.of(report, b"")
            assert [read(der).name for der in found] == ["SEV-VCEK", "SEV-Genoa", "ARK-Genoa"]
        assert len(service.asked) == 2, "what was fetched is kept"
        await upstream.close()


async def test_a_report_that_does_not_say_its_product_is_looked_for() -> None:
    async with running() as service:
        service.files[vcek_url("", GENUINE, "Milan")] = VCEK
        assert await names(GENUINE, service=service.address) == WHOLE
        assert all("Milan" in path for path in service.asked)


async def test_a_service_is_not_asked_for_what_is_there() -> None:
    async with running() as service:
        assert await names(GENUINE, table({"vcek": VCEK}), service=service.address) == WHOLE
        assert service.asked == []


async def test_a_service_that_has_nothing_or_lies_or_is_down() -> None:
    processor = Processor()
    report = parse(processor.report())
    async with running() as service:
        upstream = Upstream()
        certificates = Certificates("", service.address, upstream, 5.0)
        assert await certificates.of(report, b"") == []
        asked = len(service.asked)
        assert asked == 2
        assert await certificates.of(report, b"") == []
        assert len(service.asked) == asked, "it is left alone for a while"
        await upstream.close()
        service.files[vcek_url("", report, "Milan")] = b"no certificate"
        service.files[chain_url("", "Milan", "vcek")] = Processor(name="another").leaf()
        assert await names(report, service=service.address) == []
        service.files[vcek_url("", report, "Milan")] = b"x" * 1_000_000
        assert await names(report, service=service.address) == []
        address = service.address
    assert await names(report, service=address) == []


async def test_a_vlek_is_never_asked_for() -> None:
    processor = Processor(key="vlek")
    report = parse(processor.report())
    async with running() as service:
        service.files[chain_url("", "Milan", "vlek")] = pem(processor.issuer())
        assert await names(report, service=service.address) == []
        assert service.asked == ["/vlek/v1/Milan/cert_chain"]
