"""JSON from anybody, read strictly and within bounds."""

from __future__ import annotations

from typing import Any

from ..codecs import json_reader
from ..errors import HyperbeamError
from .checks import Malformed

MAX_ITEMS = json_reader.MAX_ITEMS


def read_json(text: str | bytes, what: str, reason: str, max_items: int = MAX_ITEMS) -> Any:
    """What `text` says. Raises Malformed `reason`.

    `max_items` bounds the brackets and commas outside of strings: what costs memory. Inside
    of strings, where a statement has whole answers, they cost nothing.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        if data.count(b",") + data.count(b"[") + data.count(b"{") > max_items:
            _check_structure(data, max_items)
        return json_reader.parse(data, max_items=len(data))
    except UnicodeEncodeError:
        raise Malformed(f"{what} has a lone surrogate in it", reason) from None
    except HyperbeamError as error:
        raise Malformed(f"{what}: {error.detail}", reason) from None


def read_object(
    text: str | bytes, what: str, reason: str, max_items: int = MAX_ITEMS
) -> dict[str, Any]:
    """The object that `text` says. Raises Malformed `reason`."""
    value = read_json(text, what, reason, max_items)
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not a JSON object", reason)
    return value


def _check_structure(data: bytes, max_items: int) -> None:
    count = 0
    for match in json_reader.STRING_OR_STRUCTURE.finditer(data):
        if data[match.start()] in b"{[,":
            count += 1
            if count > max_items:
                raise json_reader.invalid(f"it has over {max_items:,} brackets and commas")
