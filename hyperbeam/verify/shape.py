"""Strict shapes of JSON objects: exactly these keys, each of its kind, or a refusal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .checks import Malformed
from .jcs import MAX_INTEGER

Rule = Callable[[Any], str]
"""Takes a value; gives "" or what is wrong with it (` is not ...`, with its place before it)."""

_HEX = re.compile(r"(?:[0-9a-f]{2})*\Z")
_ADDRESS = re.compile(r"[A-Za-z0-9_-]{43}\Z")
_SERIAL = re.compile(r"[0-9]{1,60}\Z")
_DIGITS = re.compile(r"-?[1-9][0-9]{15,39}\Z")


def check(value: Any, rule: Rule, what: str, reason: str) -> None:
    """Raise Malformed `reason` unless `value` keeps to `rule`."""
    wrong = rule(value)
    if wrong:
        raise Malformed(what + wrong, reason)


def record(**rules: Rule) -> Rule:
    """An object with exactly these keys."""

    def rule(value: Any) -> str:
        if not isinstance(value, dict):
            return " is not an object"
        for name in rules:
            if name not in value:
                return f" has no {name!r}"
        for name in value:
            if name not in rules:
                return f" has an unknown key {str(name)[:64]!r}"
        for name, of in rules.items():
            wrong = of(value[name])
            if wrong:
                return f".{name}{wrong}"
        return ""

    return rule


def constant(expected: str) -> Rule:
    """This text and no other."""

    def rule(value: Any) -> str:
        return "" if value == expected else f" is not {expected!r}"

    return rule


def one_of(*allowed: str | None) -> Rule:
    """One of these words."""
    names = ", ".join("null" if word is None else word for word in allowed)

    def rule(value: Any) -> str:
        known = value is None or isinstance(value, str)
        return "" if known and value in allowed else f" is none of {names}"

    return rule


def optional(rule: Rule) -> Rule:
    """Null, or what `rule` allows."""
    return lambda value: "" if value is None else rule(value)


def listing(rule: Rule, least: int = 0, most: int = 16) -> Rule:
    """A list of `least` to `most` items that keep to `rule`."""

    def check_list(value: Any) -> str:
        if not isinstance(value, list):
            return " is not a list"
        if not least <= len(value) <= most:
            return f" has {len(value)} items, not {least} to {most}"
        for index, item in enumerate(value):
            wrong = rule(item)
            if wrong:
                return f"[{index}]{wrong}"
        return ""

    return check_list


def hexadecimal(least: int, most: int | None = None) -> Rule:
    """`least` to `most` bytes (exactly `least` by default) in lower-case hex."""
    most = most or least
    size = f"{least * 2}" if least == most else f"{least * 2} to {most * 2}"

    def rule(value: Any) -> str:
        if isinstance(value, str) and 2 * least <= len(value) <= 2 * most and _HEX.match(value):
            return ""
        return f" is not {size} lower-case hex characters"

    return rule


def text(most: int = 1024) -> Rule:
    """A text of at most `most` characters."""

    def rule(value: Any) -> str:
        if not isinstance(value, str):
            return " is not a text"
        return "" if len(value) <= most else f" has over {most} characters"

    return rule


def natural(value: Any) -> str:
    """An integer from 0 to 2^53 - 1."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return "" if whole and 0 <= value <= MAX_INTEGER else " is not an integer from 0 to 2^53 - 1"


def integer(value: Any) -> str:
    """An integer within 2^53, or a larger one as decimal digits in a text."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INTEGER:
        return ""
    if isinstance(value, str) and _DIGITS.match(value) and abs(int(value)) > MAX_INTEGER:
        return ""
    return " is not an integer (past 2^53 written as text)"


def status(value: Any) -> str:
    """An HTTP status."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return "" if whole and 100 <= value <= 599 else " is not an HTTP status"


def boolean(value: Any) -> str:
    """True or false."""
    return "" if isinstance(value, bool) else " is not true or false"


def anything(value: Any) -> str:
    """Whatever JSON can hold."""
    return ""


def mapping(value: Any) -> str:
    """An object with any keys."""
    return "" if isinstance(value, dict) else " is not an object"


def address(value: Any) -> str:
    """The base64url SHA-256 of a public key, 43 characters."""
    fits = isinstance(value, str) and _ADDRESS.match(value)
    return "" if fits else " is not an address of 43 base64url characters"


def decimal(value: Any) -> str:
    """A serial number of at most 60 decimal digits, as text."""
    fits = isinstance(value, str) and _SERIAL.match(value)
    return "" if fits else " is not a decimal number in a text"


digest = hexadecimal(32)
receipt_id = hexadecimal(16)
key_id = hexadecimal(8)
signature = hexadecimal(64)
salt = hexadecimal(16, 32)
