import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperbeam import ConfigError
from hyperbeam.config import LogConfig
from hyperbeam.observe.logging import TOPICS, setup
from hyperbeam.observe.request_id import RequestInfo, enter

SOURCES = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    loggers = [logging.getLogger(), logging.getLogger("hyperbeam")]
    loggers += [logging.getLogger(f"hyperbeam.{topic}") for topic in TOPICS]
    before = [(one, one.level, one.handlers, one.propagate) for one in loggers]
    yield
    for one, level, handlers, propagate in before:
        one.setLevel(level)
        one.handlers, one.propagate = handlers, propagate


def test_every_logger_has_a_topic() -> None:
    found = set()
    for folder in ("hyperbeam", "devices"):
        for file in (SOURCES / folder).rglob("*.py"):
            found |= set(re.findall(r'getLogger\("hyperbeam\.([^"]+)"\)', file.read_text()))
    assert found
    assert found <= set(TOPICS)


def test_an_unknown_topic_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'htp'.*http, inference"):
        setup(["http", "htp"])
    setup(["http", "all", "devices.mine"])


async def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    setup(["relay"], LogConfig(format="json", level="warning"))
    log = logging.getLogger("hyperbeam.http")
    enter(RequestInfo("id-1"))
    log.info("not shown")
    logging.getLogger("hyperbeam.relay").debug('said "%s"\n\x1b[0m', "é")
    logging.getLogger("asyncio").error("of a library")
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("failed", extra={"fields": {"status": 500}})
    first, second, third = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["message"] == 'said "é"\n\x1b[0m'
    assert first["topic"] == "relay"
    assert first["level"] == "debug"
    assert first["request"] == "id-1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert second["topic"] == "asyncio"
    assert third["status"] == 500
    assert "ValueError: bad" in third["exception"]


async def test_console_lines_end_with_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    setup([])
    logging.getLogger("hyperbeam.http").info("before")
    enter(RequestInfo("id-1"))
    fields = {"status": 200, "ms": 1.5, "model": "two words", "key": ""}
    logging.getLogger("hyperbeam.access").info("GET / 200", extra={"fields": fields})
    before, access = capsys.readouterr().err.splitlines()
    assert before.endswith("INFO    http: before")
    assert access.endswith("INFO    access: GET / 200 ms=1.5 model='two words' [id-1]")


async def test_access_lines_are_shown_at_any_level(capsys: pytest.CaptureFixture[str]) -> None:
    setup([], LogConfig(level="error", access=True))
    logging.getLogger("hyperbeam.access").info("GET / 200")
    logging.getLogger("hyperbeam.http").info("no")
    assert len(capsys.readouterr().err.splitlines()) == 1
