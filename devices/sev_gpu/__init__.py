"""sev_gpu@1.0: evidence that NVIDIA GPUs sign, and its verification."""

from .device import SevGpu

__all__ = ["SevGpu"]
