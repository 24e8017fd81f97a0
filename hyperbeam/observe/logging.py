"""The log: one line an event on stderr, `hyperbeam.<topic>` being the logger's name.

`HB_PRINT=http,inference` (or `print` in the config) shows those topics in full.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

ROOT = "hyperbeam"
ALL = "all"


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.topic = record.name.removeprefix(f"{ROOT}.")
        return super().format(record)


def setup(topics: Iterable[str]) -> None:
    """Write the log to stderr: `topics` from DEBUG on, all else from INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Formatter("%(asctime)s %(levelname)-7s %(topic)s: %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger(ROOT)
    root.handlers = [handler]
    root.propagate = False
    wanted = set(topics)
    root.setLevel(logging.DEBUG if ALL in wanted else logging.INFO)
    for topic in wanted - {ALL}:
        logging.getLogger(f"{ROOT}.{topic}").setLevel(logging.DEBUG)
