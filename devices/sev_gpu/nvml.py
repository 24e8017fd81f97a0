"""Evidence by NVML, the driver's own library (nvidia-ml-py 13)."""

from __future__ import annotations

import asyncio
import base64
import importlib
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from hyperbeam import Unavailable

from .collect import Evidence, may_pass, never, unavailable
from .config import SevGpuConfig
from .threads import Lane

MISSING = "the NVML bindings are not installed: pip install 'hyperbeam-node[nvidia]'"
_ARCHITECTURES = {9: "HOPPER", 10: "BLACKWELL"}
"""NVML_DEVICE_ARCH_* of the GPUs that can attest, by the names that verifiers know."""


@dataclass(frozen=True, slots=True)
class _State:
    """What the driver said once: a change of any needs a reset of the GPUs."""

    cc: bool
    devtools: bool
    driver: str
    count: int

    @property
    def problem(self) -> str:
        """Why the GPUs' reports would prove nothing."""
        if self.count == 0:
            return "the driver shows no GPU"
        if not self.cc:
            return (
                "confidential computing is off (ccFeature 0): it needs a confidential VM with "
                "the GPU in CC mode"
            )
        if self.devtools:
            return "the GPUs are in devtools mode, whose reports prove nothing; use CC mode 'on'"
        return ""


class NvmlCollector:
    """Asks every GPU at the same time, each in a thread and under a lock of its own."""

    name = "nvml"

    def __init__(self, config: SevGpuConfig) -> None:
        self._limit = config.timeout
        self._wanted = config.gpus
        self._library = Lane("the NVIDIA driver")
        self._gpus: dict[int, Lane] = {}
        self._state: _State | None = None

    async def available(self) -> str:
        """Why not: no bindings, no driver, no CC mode, devtools mode.

        Raises Unavailable where the driver or a GPU hangs.
        """
        try:
            state = await self._open()
        except Unavailable as error:
            if may_pass(error):
                raise
            return error.detail
        if state.problem:
            return state.problem
        missing = [index for index in self._wanted if index >= state.count]
        if missing:
            return f"sev_gpu.gpus names GPU {missing[0]}, and there are {state.count}"
        for lane in self._gpus.values():
            if lane.problem():
                raise unavailable(lane.problem())
        return ""

    async def collect(self, nonce: bytes) -> list[Evidence]:
        """One report of every wanted GPU. Raises Unavailable that names the GPU at fault."""
        state = await self._open()
        if state.problem:
            raise never(state.problem)
        nvml = await _bindings()
        calls = [
            self._lane(index).call(partial(_report, nvml, index, nonce), self._limit)
            for index in self._indices(state)
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        entries = []
        for index, one in zip(self._indices(state), found, strict=True):
            if isinstance(one, nvml.NVMLError):
                raise unavailable(f"GPU {index} gave no report: {one}")
            if isinstance(one, BaseException):
                raise one
            entries.append(one)
        return entries

    async def info(self) -> dict[str, Any]:
        """GPUs by index with name and UUID, the driver's version, CC and devtools mode."""
        try:
            state = await self._open()
        except Unavailable:
            return {"gpus": [], "driver": None, "cc": None, "devtools": None}
        nvml = await _bindings()
        gpus = []
        for index in self._indices(state):
            try:
                gpu = await self._lane(index).call(partial(_describe, nvml, index), self._limit)
            except (Unavailable, nvml.NVMLError) as error:
                gpu = {"index": index, "problem": str(error)}
            gpus.append(gpu)
        modes = {"driver": state.driver, "cc": state.cc, "devtools": state.devtools}
        return {"gpus": gpus, **modes}

    async def aclose(self) -> None:
        """Leave the library open: a thread may still be in it."""

    def _lane(self, index: int) -> Lane:
        return self._gpus.setdefault(index, Lane(f"GPU {index}"))

    def _indices(self, state: _State) -> list[int]:
        return sorted(set(self._wanted)) or list(range(state.count))

    async def _open(self) -> _State:
        if self._state is None or self._state.problem:
            nvml = await _bindings()
            try:
                self._state = await self._library.call(partial(_state, nvml), self._limit)
            except nvml.NVMLError as error:
                raise never(f"NVML: {error}") from None
        return self._state


async def _bindings() -> ModuleType:
    try:
        return await asyncio.to_thread(importlib.import_module, "pynvml")
    except ImportError:
        raise never(MISSING) from None


def _state(nvml: ModuleType) -> _State:
    nvml.nvmlInit()
    state = nvml.nvmlSystemGetConfComputeState()
    return _State(
        cc=state.ccFeature != 0,
        devtools=state.devToolsMode != 0,
        driver=str(_optional(nvml, nvml.nvmlSystemGetDriverVersion) or ""),
        count=nvml.nvmlDeviceGetCount(),
    )


def _report(nvml: ModuleType, index: int, nonce: bytes) -> Evidence:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    arch = nvml.nvmlDeviceGetArchitecture(handle)
    report = nvml.nvmlDeviceGetConfComputeGpuAttestationReport(handle, nonce)
    chain = nvml.nvmlDeviceGetConfComputeGpuCertificate(handle)
    signed = bytes(report.attestationReport[: report.attestationReportSize])
    certificates = bytes(chain.attestationCertChain[: chain.attestationCertChainSize])
    return {
        "arch": _ARCHITECTURES.get(arch, f"UNKNOWN-{arch}"),
        "nonce": nonce.hex(),
        "evidence": base64.b64encode(signed).decode(),
        "certificate": base64.b64encode(certificates.rstrip(b"\0")).decode(),
    }


def _describe(nvml: ModuleType, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return {
        "index": index,
        "name": _optional(nvml, nvml.nvmlDeviceGetName, handle),
        "uuid": _optional(nvml, nvml.nvmlDeviceGetUUID, handle),
    }


def _optional(nvml: ModuleType, function: Any, *arguments: Any) -> Any:
    try:
        value = function(*arguments)
    except nvml.NVMLError:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
