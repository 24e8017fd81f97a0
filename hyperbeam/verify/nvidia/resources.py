"""Where a verifier gets what evidence does not bring: RIMs, OCSP answers, time to wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .cache import Cache

Fetch = Callable[[str, bytes | None, str], bytes]
"""(url, body or None for GET, the body's content type) -> the reply's body.

Raises FileNotFoundError where the server has no such thing, TimeoutError where it is too
slow, another OSError where it cannot be reached or answers with an error.
"""

RIM_SERVICE = "https://rim.attestation.nvidia.com"
OCSP_SERVICE = "https://ocsp.ndis.nvidia.com/"


@dataclass(frozen=True, slots=True)
class Resources:
    """`rim_folder` is searched before `cache`, and that before the RIM service.

    Without `fetch` nothing is asked of the network. `ocsp_url` "" takes the certificate's
    own, else OCSP_SERVICE. `deadline`: seconds that one whole check may wait.
    """

    rim_folder: Path | None = None
    fetch: Fetch | None = None
    rim_url: str = RIM_SERVICE
    ocsp_url: str = ""
    cache: Cache = field(default_factory=Cache)
    deadline: float = 30.0
