"""The log: one line an event on stderr, `hyperbeam.<topic>` being the logger's name.

`HB_PRINT=http,inference` (or `print` in the config) shows those topics in full; `[log]` says
in which form, and from which level on, all others are shown.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from ..config import LogConfig
from ..errors import ConfigError
from .request_id import current

ROOT = "hyperbeam"
ALL = "all"
PLUGINS = "devices"
"""A device that is no part of this package logs as `hyperbeam.devices.<its name>`."""
TOPICS = (
    "access",
    "backend",
    "backend.llama",
    "backend.sglang",
    "backend.url",
    "devices",
    "hooks",
    "http",
    "inference",
    "keys",
    "metrics",
    "node",
    "receipt_log",
    "receipts",
    "relay",
    "resolver",
    "routing",
    "sev_gpu",
    "snp",
    "store",
)
_LINE = "%(asctime)s %(levelname)-7s %(topic)s: %(message)s"


class Console(logging.Formatter):
    """`05:26:45 INFO    http: message [request id]`, and an exception on the lines after it."""

    def __init__(self) -> None:
        super().__init__(_LINE, "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.topic = _topic(record)
        said = [
            f"{name}={_plain(value)}"
            for name, value in _fields(record).items()
            if value not in ("", None) and name not in ("method", "path", "status")
        ]
        info = current()
        if info is not None:
            said.append(f"[{info.id}]")
        return " ".join([super().formatMessage(record), *said])


class JSONLines(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `topic`, `message`, `request` (its id), the
    event's own fields, `exception` (the traceback)."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "topic": _topic(record),
            "message": record.getMessage(),
        }
        info = current()
        if info is not None:
            line["request"] = info.id
        line |= _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"), default=str)


def setup(topics: Iterable[str], config: LogConfig | None = None) -> None:
    """Write the log to stderr: `topics` from DEBUG on, all else from the config's level on.

    What libraries log is written from WARNING on. Raises ConfigError for an unknown topic.
    """
    config = config or LogConfig()
    wanted = set(topics)
    check(wanted)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines() if config.format == "json" else Console())
    logging.getLogger().handlers = [handler]
    root = logging.getLogger(ROOT)
    root.handlers = [handler]
    root.propagate = False
    root.setLevel(logging.DEBUG if ALL in wanted else config.level.upper())
    for topic in wanted - {ALL}:
        logging.getLogger(f"{ROOT}.{topic}").setLevel(logging.DEBUG)
    if config.access:
        logging.getLogger(f"{ROOT}.access").setLevel(logging.INFO)


def check(topics: Iterable[str]) -> None:
    """Raises ConfigError for a topic that nothing logs under."""
    for topic in topics:
        known = topic in TOPICS or topic == ALL or topic.startswith(f"{PLUGINS}.")
        if not known:
            raise ConfigError(
                f"--print (HB_PRINT, print): no log topic {topic[:100]!r}; there is: {ALL}, "
                f"{', '.join(TOPICS)}, {PLUGINS}.<name> for a device of your own"
            )


def _topic(record: logging.LogRecord) -> str:
    return record.name.removeprefix(f"{ROOT}.")


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def _plain(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)
