"""The section `[snp]` of hyperbeam.toml."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(gt=0)]


class SnpConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[snp]`: where the CPU's reports come from, and what a verification demands."""

    backend: Literal["auto", "configfs", "ioctl", "none"] = "auto"
    """`configfs` is the kernel's own interface (Linux 6.7 and later), `ioctl` the older
    device; `auto` is the first of the two that this machine offers."""
    configfs: str = "/sys/kernel/config/tsm/report"
    """The folder of configfs-tsm."""
    device: str = "/dev/sev-guest"
    """The guest device that `ioctl` asks."""
    certificates: str = ""
    """A folder with AMD's certificates for this machine (.pem, .der, .crt, .cert), for hosts
    that hand out none: the VCEK or VLEK, and the two above it."""
    kds: str = ""
    """The address of AMD's key distribution service, such as https://kdsintf.amd.com, asked
    for certificates that neither the host nor the folder has; empty: never asked."""
    timeout: Seconds = 10.0
    """Seconds for one report, and for one reply of the key distribution service."""
    policy: dict[str, Any] = {}
    """What a verification demands, as in docs/snp.md: measurements, debug, migration,
    max_vmpl, min_tcb, min_guest_svn, author_keys, id_keys, host_data, chip_ids, keys,
    products. A request may only demand more."""
