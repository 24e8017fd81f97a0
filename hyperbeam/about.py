"""What a device says of itself to those who would call it, by the docstrings of its class."""

from __future__ import annotations

import inspect

from .device import Device
from .message import Message


def about(device: type[Device]) -> Message:
    """`{name, version, docs, keys: {key: docs}}`, and `default`: what any other key does.

    Docs are the first paragraphs of docstrings, each on one line; "" where there is none.
    """
    said: Message = {
        "name": device.name,
        "version": device.name.partition("@")[2],
        "docs": first_paragraph(device.__doc__),
        "keys": {name: first_paragraph(key.doc) for name, key in sorted(device.keys.items())},
    }
    default = getattr(device, "default", None)
    return said if default is None else {**said, "default": first_paragraph(default.__doc__)}


def first_paragraph(doc: str | None) -> str:
    """A docstring's first paragraph on one line."""
    return " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())
