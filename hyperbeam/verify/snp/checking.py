"""The checks of one report, each with its own reason. All are made that can be."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..checks import Checks, Malformed, Source
from . import chain as chains
from .certificate import Certificate, read_all
from .chain import Chain, Refused
from .policy import Policy
from .report import Report, Tcb, parse
from .signature import is_signed_by


class Checking:
    """`report` and `chain` are None where there is none that could be read or that holds."""

    def __init__(self, policy: Policy, now: datetime) -> None:
        self.policy = policy
        self.now = now
        self.checks = Checks()
        self.report: Report | None = None
        self.chain: Chain | None = None

    @property
    def genuine(self) -> bool:
        """Whether the report was signed by a key under a trusted root."""
        return self.checks.ok("chain") and self.checks.ok("signature")

    def read(self, data: bytes) -> Report | None:
        """Read the report."""
        try:
            self.report = parse(data)
        except Malformed as error:
            self.checks.failed("report", error.reason, error.detail)
        else:
            self.checks.passed("report", f"version {self.report.version}")
        return self.report

    def authenticate(self, report: Report, items: Sequence[bytes]) -> Chain | None:
        """Build the chain, then check dates, signature, and that the key is the report's."""
        try:
            certificates: list[Certificate] = read_all(items)
            self.chain = chains.build(certificates, report.key, self.policy.trust)
        except Malformed as error:
            self.checks.failed("chain", error.reason, error.detail)
            return None
        except Refused as error:
            self.checks.failed("chain", error.reason, error.detail)
            return None
        names = " < ".join(certificate.name for certificate in self.chain)
        self.checks.passed("chain", names, "hardware")
        self._dates(self.chain)
        self._signature(report, self.chain)
        self._key(report)
        self._product(report, self.chain)
        self._tcb(report, self.chain)
        self._chip(report, self.chain)
        self.checks.unknown("revocation", "revocation-unchecked", "AMD's lists are not read")
        return self.chain

    def guest(self, report: Report) -> None:
        """Check how the guest runs."""
        policy = self.policy
        said = f"VMPL {report.vmpl}, at most {policy.max_vmpl}"
        self._say("vmpl", report.vmpl <= policy.max_vmpl, "vmpl-too-high", said)
        self._say(
            "debug",
            not report.debug or policy.debug == "allow",
            "debug-allowed",
            "the host may read the guest's memory" if report.debug else "",
        )
        self._say(
            "migration",
            not report.migration or policy.migration == "allow",
            "migration-allowed",
            "a migration agent may move the guest" if report.migration else "",
        )
        enough = report.guest_svn >= policy.min_guest_svn
        said = f"version {report.guest_svn}, at least {policy.min_guest_svn}"
        self._say("guest-svn", enough, "guest-svn-below-minimum", said)
        self._listed("id-key", report.id_key_digest, policy.id_keys)
        author = report.author_key_digest if report.has_author_key else b""
        self._listed("author-key", author, policy.author_keys)
        self._listed("host-data", report.host_data, policy.host_data)

    def measurement(self, report: Report) -> None:
        """Check the measurement against the policy's list."""
        said = report.measurement.hex()
        if said in self.policy.measurements:
            self.checks.passed("measurement", said, self._source())
        elif self.policy.measurements:
            detail = f"{said} is not in the policy's list"
            self.checks.failed("measurement", "measurement-not-accepted", detail, self._source())
        else:
            detail = f"{said}: the policy accepts no measurement"
            self.checks.unknown("measurement", "measurement-unknown", detail, self._source())

    def report_data(self, report: Report, expected: bytes | None) -> None:
        """Check what the report is bound to."""
        if expected is None:
            detail = "nobody said what the report has to be bound to"
            self.checks.failed("report-data", "report-data-not-given", detail)
            return
        same = hmac.compare_digest(report.report_data, expected)
        detail = "" if same else "the report is bound to something else"
        self._say("report-data", same, "report-data-mismatch", detail)

    def claims(self, report: Report, chain: Chain) -> dict[str, Any]:
        """What the report says, in names of the ABI; digests in hex."""
        product = chain.product
        return {
            "product": product,
            "key": report.key,
            "provider": chain.leaf.provider() or None,
            "version": report.version,
            "measurement": report.measurement.hex(),
            "report_data": report.report_data.hex(),
            "host_data": report.host_data.hex(),
            "id_key_digest": report.id_key_digest.hex(),
            "author_key_digest": report.author_key_digest.hex() if report.has_author_key else None,
            "family_id": report.family_id.hex(),
            "image_id": report.image_id.hex(),
            "report_id": report.report_id.hex(),
            "chip_id": report.chip_id.hex(),
            "guest_svn": report.guest_svn,
            "vmpl": report.vmpl,
            "debug": report.debug,
            "migration": report.migration,
            "smt": report.smt,
            "single_socket": report.single_socket,
            "reported_tcb": Tcb.read(report.reported_tcb, product).as_dict(),
            "current_tcb": Tcb.read(report.current_tcb, product).as_dict(),
            "committed_tcb": Tcb.read(report.committed_tcb, product).as_dict(),
            "launch_tcb": Tcb.read(report.launch_tcb, product).as_dict(),
        }

    def _source(self) -> Source:
        return "hardware" if self.genuine else "unknown"

    def _say(self, name: str, good: bool, reason: str, detail: str = "") -> None:
        if good:
            self.checks.passed(name, detail, self._source())
        else:
            self.checks.failed(name, reason, detail, self._source())

    def _listed(self, name: str, value: bytes, allowed: tuple[str, ...] | None) -> None:
        if allowed is not None:
            detail = value.hex() or "there is none"
            self._say(name, value.hex() in allowed, f"{name}-refused", detail)

    def _dates(self, chain: Chain) -> None:
        for certificate in chain:
            begins, ends = certificate.begins, certificate.ends
            if self.now > ends:
                detail = f"the certificate of {certificate.name} ended on {ends.date()}"
                self.checks.failed("dates", "certificate-expired", detail)
                return
            if self.now < begins:
                detail = f"the certificate of {certificate.name} begins on {begins.date()}"
                self.checks.failed("dates", "certificate-not-yet-valid", detail)
                return
        self.checks.passed("dates", source="hardware")

    def _signature(self, report: Report, chain: Chain) -> None:
        if is_signed_by(report, chain.leaf):
            self.checks.passed("signature", f"by the {report.key.upper()}", "hardware")
        else:
            detail = f"the report is not signed by the key of this {report.key.upper()}"
            self.checks.failed("signature", "report-signature", detail)

    def _key(self, report: Report) -> None:
        good = report.key in self.policy.keys
        self._say("key", good, "key-refused", f"signed by a {report.key.upper()}")

    def _product(self, report: Report, chain: Chain) -> None:
        said = chain.leaf.product_name()
        if said.partition("-")[0] != chain.product or (
            report.cpu is not None and report.product != chain.product
        ):
            detail = f"the root is {chain.product}'s, key and report name another product line"
            self.checks.failed("product", "product-mismatch", detail)
        else:
            good = chain.product in self.policy.products
            self._say("product", good, "product-refused", said)

    def _tcb(self, report: Report, chain: Chain) -> None:
        reported = Tcb.read(report.reported_tcb, chain.product)
        certified = chain.leaf.tcb(chain.product)
        if certified is None:
            detail = "the key's certificate says no patch levels"
            self.checks.failed("tcb", "tcb-missing", detail)
        else:
            detail = f"{_levels(reported)}; the key is for {_levels(certified)}"
            self._say("tcb", reported == certified, "tcb-mismatch", detail)
        least = self.policy.min_tcb.get(chain.product, {})
        launched = Tcb.read(report.launch_tcb, chain.product)
        for name, tcb in (("tcb", reported), ("launch-tcb", launched)):
            low = [part for part, level in least.items() if tcb.as_dict()[part] < level]
            detail = f"{', '.join(low)} of {_levels(tcb)}" if low else ""
            self._say(f"minimum-{name}", not low, f"{name}-below-minimum", detail)

    def _chip(self, report: Report, chain: Chain) -> None:
        if report.key == "vcek":
            named = chain.leaf.hardware_id()
            same = bool(named) and any(named) and named.ljust(64, b"\0") == report.chip_id
            detail = "" if same else "the VCEK is another chip's, or the report hides its chip"
            self._say("chip", same, "chip-mismatch", detail)
        else:
            detail = "a VLEK names the provider, not the chip"
            self.checks.unknown("chip", "chip-not-named", detail)
        self._listed("chip-id", report.chip_id, self.policy.chip_ids)


def _levels(tcb: Tcb) -> str:
    return ", ".join(f"{name} {level}" for name, level in tcb.as_dict().items())
