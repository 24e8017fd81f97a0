"""The certificate authorities of one simulation: NVIDIA's hierarchy under one made-up root."""

from __future__ import annotations

from datetime import datetime

from . import certificates as certs
from .certificates import FOREVER, Issued


class Authorities:
    """Root, one identity and provisioner a chip, and who signs reference manifests.

    NVIDIA has a second root for manifests; here one root vouches for all, so that one
    fingerprint names the whole simulation.
    """

    def __init__(self, chips: list[str], ocsp_url: str, rim_ends: datetime = FOREVER) -> None:
        self._ocsp_url = ocsp_url
        self._rim_ends = rim_ends
        named = certs.authority(ocsp_url=ocsp_url)
        self.root = certs.issue(
            certs.subject("SIMULATED Device Identity CA"), None, certs.authority()
        )
        self._provisioners: dict[str, list[Issued]] = {}
        for chip in chips:
            identity = certs.issue(certs.subject(f"SIMULATED {chip} Identity"), self.root, named)
            name = certs.subject(f"SIMULATED {chip} Provisioner ICA 1")
            self._provisioners[chip] = [certs.issue(name, identity, named), identity, self.root]
        rims = certs.issue(certs.subject("SIMULATED Reference Value CA"), self.root, named)
        last = certs.issue(
            certs.subject("SIMULATED Reference Value L3 001"),
            rims,
            certs.authority(path_length=0, ocsp_url=ocsp_url),
        )
        self._rims = [last, rims, self.root]
        self._signers = {kind: self._rim_signer() for kind in ("driver", "vbios")}

    def provisioner(self, chip: str) -> list[Issued]:
        """Who issues the certificates of a chip's devices, then those above, the root last."""
        return self._provisioners[chip]

    def rim_chain(self, kind: str) -> list[Issued]:
        """The signer of the `driver` or `vbios` manifests, then those above, the root last."""
        return [self._signers[kind], *self._rims]

    def issuers(self) -> list[Issued]:
        """All that issue certificates whose status can be asked for."""
        chains = [*self._provisioners.values(), self._rims]
        return [one for chain in chains for one in chain]

    def _rim_signer(self) -> Issued:
        return certs.issue(
            certs.subject("SIMULATED RIM L4 Signer"),
            self._rims[0],
            certs.signer(constrained=True, ocsp_url=self._ocsp_url),
            ends=self._rim_ends,
        )
