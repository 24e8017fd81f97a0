"""From the key that signed a report (VCEK or VLEK) by AMD's signing key to AMD's root."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .certificate import Certificate, read_all
from .report import Key
from .roots import PRODUCTS, ROOTS, Product, shipped

SIMULATED = "simulated:"


class Refused(Exception):
    """A chain that does not hold. `reason` is a kebab-case word."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Chain:
    """Three certificates, each signed by the next; the last is a root that is trusted."""

    leaf: Certificate
    issuer: Certificate
    root: Certificate
    product: Product

    def __iter__(self) -> Iterator[Certificate]:
        return iter((self.leaf, self.issuer, self.root))


@functools.cache
def own() -> tuple[Certificate, ...]:
    """The certificates that come with the package."""
    return tuple(read_all(shipped()))


def build(certificates: Sequence[Certificate], key: Key, trust: str) -> Chain:
    """The chain for a report signed by `key`. `trust`: as in `Policy`. Raises Refused."""
    leaf = _leaf(certificates, key)
    known = [*certificates, *own()]
    issuer, root = _issued_by_root(leaf, known, trust)
    product = _product(root)
    wanted = f"SEV-{product}" if key == "vcek" else f"SEV-VLEK-{product}"
    if issuer.name != wanted:
        raise Refused("issuer-mismatch", f"the {key.upper()} is issued by {issuer.name}")
    for authority in (issuer, root):
        if not authority.may_issue():
            raise Refused("not-an-authority", f"{authority.name} may not issue certificates")
    if not leaf.signed_by(issuer):
        raise Refused("leaf-signature", f"the {key.upper()} is not signed by {issuer.name}")
    if leaf.report_key() is None or not leaf.is_understood():
        raise Refused("leaf-key", f"the {key.upper()} has no ECDSA P-384 key, or is not as AMD's")
    return Chain(leaf, issuer, root, product)


def _leaf(certificates: Sequence[Certificate], key: Key) -> Certificate:
    name = f"SEV-{key.upper()}"
    found = [certificate for certificate in certificates if certificate.name == name]
    if not found:
        raise Refused(f"{key}-missing", f"no {key.upper()} certificate came with the report")
    if len(found) > 1:
        raise Refused("leaf-ambiguous", f"{len(found)} {key.upper()} certificates came with it")
    return found[0]


def _issued_by_root(
    leaf: Certificate, known: Sequence[Certificate], trust: str
) -> tuple[Certificate, Certificate]:
    # Roots first: no key is used that a trusted root has not vouched for.
    issuers = [each for each in known if each.subject == leaf.issuer]
    if not issuers:
        raise Refused("issuer-missing", f"the certificate of {leaf.issuer_name!r} is missing")
    failed = Refused("root-missing", f"the certificate of {issuers[0].issuer_name!r} is missing")
    for issuer in issuers:
        for root in known:
            if root.subject != issuer.issuer:
                continue
            if not _is_trusted(root, trust):
                if failed.reason == "root-missing":
                    failed = Refused("root-not-trusted", f"{root.name} is not a trusted root")
            elif issuer.signed_by(root):
                return issuer, root
            else:
                failed = Refused("issuer-signature", f"{issuer.name} is not signed by its root")
    raise failed


def _is_trusted(root: Certificate, trust: str) -> bool:
    if trust.startswith(SIMULATED):
        return root.fingerprint == trust.removeprefix(SIMULATED)
    return root.fingerprint in ROOTS


def _product(root: Certificate) -> Product:
    pinned = ROOTS.get(root.fingerprint)
    for product in PRODUCTS:
        if root.name == f"ARK-{product}" and pinned in (None, product):
            return product
    raise Refused("root-not-trusted", f"{root.name} is the root of no known product")
