"""Where a report's certificates come from: the host's table, a folder, AMD's service."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path

from hyperbeam import ConfigError, HyperbeamError
from hyperbeam.http.upstream import Upstream
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.snp import kds
from hyperbeam.verify.snp.certificate import MAX_SIZE, Certificate, read_all
from hyperbeam.verify.snp.chain import own
from hyperbeam.verify.snp.report import Report
from hyperbeam.verify.snp.roots import PRODUCTS, Product
from hyperbeam.verify.snp.signature import is_signed_by
from hyperbeam.verify.snp.table import parse

SUFFIXES = (".pem", ".der", ".crt", ".cer", ".cert")

ASK_AGAIN = 60.0
"""Seconds after which a service that had nothing is asked again."""

log = logging.getLogger("hyperbeam.snp")


class Certificates:
    """Finds what a verifier needs to check this machine's reports."""

    def __init__(self, folder: str, service: str, upstream: Upstream, timeout: float) -> None:
        self._folder = Path(folder) if folder else None
        if self._folder is not None and not self._folder.is_dir():
            raise ConfigError(f"snp.certificates: there is no folder {self._folder}")
        self._service = service
        self._upstream = upstream
        self._timeout = timeout
        self._fetched: dict[str, bytes] = {}
        self._failed: dict[str, float] = {}

    async def of(self, report: Report, table: bytes) -> list[bytes]:
        """DER: the key that signed `report`, and those above it as far as they are known.

        What cannot be had is left out: a verifier may have it from elsewhere.
        """
        known = await asyncio.to_thread(self._local, table)
        chain = _chain(report, known)
        if self._service and len(chain) < 3:
            for product in _products(report):
                known += await self._ask(report, product)
                chain = _chain(report, known)
                if len(chain) == 3:
                    break
        return [certificate.der for certificate in chain]

    def _local(self, table: bytes) -> list[Certificate]:
        given = self._read(self._of_table(table), "the host's table")
        return [*given, *self._of_folder(), *own()]

    def _of_table(self, table: bytes) -> Iterable[bytes]:
        try:
            return parse(table).values()
        except Malformed as error:
            log.warning("%s", error.detail)
            return ()

    def _of_folder(self) -> list[Certificate]:
        found = []
        files = sorted(self._folder.iterdir()) if self._folder is not None else []
        for file in files:
            if file.suffix.lower() in SUFFIXES and file.is_file():
                try:
                    data = file.read_bytes()
                except OSError as error:
                    log.warning("%s cannot be read: %s", file, error.strerror)
                    continue
                found += self._read([data], str(file))
        return found

    async def _ask(self, report: Report, product: Product) -> list[Certificate]:
        urls = [kds.chain_url(self._service, product, report.key)]
        if report.key == "vcek":
            urls.append(kds.vcek_url(self._service, report, product))
        found = []
        for url in urls:
            data = self._fetched.get(url) or await self._fetch(url)
            if data:
                self._fetched[url] = data
                found += self._read([data], url)
        return found

    async def _fetch(self, url: str) -> bytes:
        """What the service has at `url`, b"" where nothing is to be had for now."""
        if time.monotonic() < self._failed.get(url, 0.0) + ASK_AGAIN:
            return b""
        try:
            reply = await self._upstream.request(
                url, "GET", [], b"", first_byte_timeout=self._timeout, idle_timeout=self._timeout
            )
            try:
                body = await reply.read(4 * MAX_SIZE)
            finally:
                await reply.aclose()
        except HyperbeamError as error:
            why = error.detail
        else:
            if reply.status == 200:
                return body
            why = f"status {reply.status}"
        self._failed[url] = time.monotonic()
        log.warning("no certificate from %s: %s", url, why)
        return b""

    def _read(self, items: Iterable[bytes], where: str) -> list[Certificate]:
        try:
            return read_all(items)
        except Malformed as error:
            log.warning("%s: %s", where, error.detail)
            return []


def _chain(report: Report, known: list[Certificate]) -> list[Certificate]:
    """The certificate whose key signed `report`, its issuer, and that one's."""
    chain = [each for each in known if is_signed_by(report, each)][:1]
    while chain and len(chain) < 3:
        last = chain[-1]
        above = [each for each in known if each not in chain and last.signed_by(each)]
        if not above:
            break
        chain.append(above[0])
    return chain


def _products(report: Report) -> tuple[Product, ...]:
    """The product lines to ask for: reports of version 2 do not say theirs."""
    return PRODUCTS if report.product is None else (report.product,)
