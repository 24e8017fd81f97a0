"""snp@1.0: reports of an AMD SEV-SNP confidential VM, collected and checked."""

from .config import SnpConfig
from .device import Snp

__all__ = ["Snp", "SnpConfig"]
