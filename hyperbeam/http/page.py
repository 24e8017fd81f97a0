"""A message as a small page for a browser: escaped, without scripts or outside resources."""

from __future__ import annotations

from html import escape
from typing import Any

from ..message import Link, is_private

HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "referrer-policy": "no-referrer",
}
DEPTH = 8
TEXT = 20_000
ROWS = 500

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;"
    "color-scheme:light dark}h1{font-size:1.1rem;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;width:100%}th{text-align:left;vertical-align:top;"
    "white-space:nowrap}th,td{padding:.25rem .75rem .25rem 0;border-top:1px solid #8884}"
    "pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}"
)


def render(value: Any, *, title: str) -> bytes:
    """`value` as HTML in UTF-8. Long texts, long lists and deep nesting are shortened."""
    heading = escape(title[:300])
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{heading}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{heading}</h1>{_html(value, 0)}</html>\n"
    )
    return text.encode("utf-8", "replace")


def _html(value: Any, depth: int) -> str:
    if isinstance(value, dict):
        return _table([item for item in value.items() if not is_private(item[0])], depth)
    if isinstance(value, list):
        return _table(list(enumerate(value, 1)), depth)
    if isinstance(value, Link):
        return f'<a href="/{value.id}">{value.id}</a>'
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"{len(value)} bytes"
    text = _text(value)
    more = f"… ({len(text)} characters)" if len(text) > TEXT else ""
    return f"<pre>{escape(text[:TEXT])}{more}</pre>"


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table(rows: list[tuple[Any, Any]], depth: int) -> str:
    if not rows:
        return "<p>empty</p>"
    if depth == DEPTH:
        return f"<p>{len(rows)} entries</p>"
    cells = "".join(
        f"<tr><th>{escape(str(key)[:300])}<td>{_html(value, depth + 1)}"
        for key, value in rows[:ROWS]
    )
    more = f"<p>… of {len(rows)} entries</p>" if len(rows) > ROWS else ""
    return f"<table>{cells}</table>{more}"
