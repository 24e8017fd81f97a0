"""The section `[sev_gpu]` of hyperbeam.toml."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Backend = Literal["auto", "nvml", "nvattest", "nv-attestation-sdk", "replay", "simulated", "none"]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]

MAX_GPUS = 16
TESTS_VARIABLE = "HYPERBEAM_TESTS"
"""Set to 1 in tests: only there may published samples be given out and accepted."""


class SevGpuConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where evidence comes from, and what a verification demands."""

    backend: Backend = "auto"
    """`auto` is the first of nvml, nvattest and nv-attestation-sdk that this machine offers.
    `simulated` signs with roots made for this process, for development; `replay` gives the
    published sample, for tests; neither ever counts as genuine."""
    timeout: Seconds = 20.0
    """Seconds for one GPU's report (of nvattest and the SDK: for all GPUs together)."""
    gpus: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    """Indices of the GPUs that nvml asks; empty: all."""
    nvattest: str = "nvattest"
    """NVIDIA's attestation program: a name on PATH or a path."""
    sdk_python: str = ""
    """The Python interpreter of an environment that has nv-attestation-sdk installed."""
    simulated_gpus: Annotated[int, Meta(ge=1, le=MAX_GPUS)] = 1
    """GPUs that `simulated` stands for."""
    simulated_delay_ms: Annotated[int, Meta(ge=0)] = 0
    """Milliseconds that a simulated report takes."""
    replay: str = ""
    """The folder with attestationReport.txt and gpuAkCertChain.txt for `replay`."""
    queue: Positive = 1024
    """Requests that may wait for a report; those beyond get 503."""
    rims: str = ""
    """A folder of NVIDIA's reference manifests (.swidtag), looked through before the service."""
    rim_url: str = ""
    """The address of a manifest service; empty: NVIDIA's."""
    ocsp_url: str = ""
    """The address of a certificate status service; empty: NVIDIA's."""
    verify_timeout: Seconds = 20.0
    """Seconds for one verification, its downloads included."""
    verify_threads: Annotated[int, Meta(ge=1, le=64)] = 2
    """Verifications that are worked on at a time."""
    policy: dict[str, Any] = {}
    """What a verification demands, as in docs/verify.md: rims, rim_clock, ocsp, modes,
    gpu_count, ueids, min_driver. A request may only demand more."""
