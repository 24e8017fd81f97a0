"""Numbers as people read them."""

from __future__ import annotations

_DAY, _HOUR, _MINUTE = 86_400, 3_600, 60


def seconds(value: float | None) -> str:
    """A latency: `850 us`, `12 ms`, `3.4 s`; `-` for none."""
    if not value:
        return "-"
    if value < 0.001:
        return f"{value * 1e6:.0f} us"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s"


def duration(value: float) -> str:
    """How long something has been so: `42 s`, `3 h 12 min`, `5 d 1 h`."""
    whole = max(0, int(value))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def size(value: float) -> str:
    """Bytes: `512 B`, `1.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError


def rate(value: float) -> str:
    """Something a second: `0`, `0.25/s`, `1200/s`."""
    return "0/s" if not value else f"{value:.3g}/s" if value < 100 else f"{value:.0f}/s"
