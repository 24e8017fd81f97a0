"""Where in a table's text something stands: TOML readers give no lines for what they have read."""

from __future__ import annotations

import re

_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*(?:routes|'routes'|\"routes\")[ \t]*\]\]", re.MULTILINE)


class Places:
    """Lines of a route table's `text`, counted from 1; 0 is unknown."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [match.start() for match in _HEADER.finditer(text)]

    def route(self, number: int) -> int:
        """The line of the route `number`, the first being 1."""
        if not 0 < number <= len(self._starts):
            return 0
        return self._line(self._starts[number - 1])

    def field(self, number: int, name: str) -> int:
        """The line of a field of a route, or of a text in it; else that of the route."""
        if not name or not self.route(number):
            return self.route(number)
        start = self._starts[number - 1]
        end = self._starts[number] if number < len(self._starts) else len(self._text)
        found = re.search(rf"(?<![\w-]){re.escape(name)}", self._text[start:end])
        return self._line(start + found.start()) if found else self.route(number)

    def _line(self, position: int) -> int:
        return self._text.count("\n", 0, position) + 1
