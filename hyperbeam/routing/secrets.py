"""Secrets do not belong into a route table: anybody who reaches the node can read its routes."""

from __future__ import annotations

import re

HEADERS = frozenset(
    {"api-key", "authorization", "cookie", "proxy-authorization", "x-api-key", "x-auth-token"}
)
INSTEAD = 'write auth = "env:NAME" or auth = "file:PATH" on the node'
_PREFIX = re.compile(
    r"\b(?:Bearer|Basic) \S"
    r"|\b(?:sk|pk|hb|hf|ghp|gho|glpat|xox[abp]|AKIA|AIza)[-_]?[A-Za-z0-9_-]{16}"
)
_QUERY = re.compile(r"[?&](?:[a-z_-]*(?:key|token|secret|password))=[^&]", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9+_=-]{32,}")


def looks_secret(text: str) -> bool:
    """Whether `text` reads like a credential: known prefixes, a query's key, a long random word."""
    if _PREFIX.search(text) or _QUERY.search(text):
        return True
    return any(_is_random(word) for word in _WORD.findall(text))


def _is_random(word: str) -> bool:
    kinds = (str.islower, str.isupper, str.isdigit)
    return sum(any(kind(char) for char in word) for kind in kinds) == len(kinds)
