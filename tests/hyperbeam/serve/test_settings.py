import re
from pathlib import Path

import msgspec
import pytest

from hyperbeam.config import KERNEL_KEYS, Config, load
from hyperbeam.serve.settings import differences, merged


def config(**flags: object) -> Config:
    settings = {name.replace("__", "."): value for name, value in flags.items()}
    return load(environment={}, flags=settings)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, []),
        ({"http__port": 1}, ["http.port"]),
        ({"home": "elsewhere", "http__host": "::1"}, ["home", "http.host"]),
        ({"relay__allow": ["a"], "sev_gpu__backend": "none"}, ["relay.allow", "sev_gpu.backend"]),
    ],
)
def test_settings_that_differ_are_named(changes: dict[str, object], names: list[str]) -> None:
    assert differences(config(), config(**changes)) == names
    assert differences(config(**changes), config()) == names


def test_workers_take_new_limits_and_sections_but_not_what_the_supervisor_holds() -> None:
    old = config(workers=2, inference__model="a", relay__allow=["a"], http__port=1)
    new = config(
        workers=3,
        inference__model="b",
        relay__allow=["b"],
        http__port=2,
        http__body_limit=7,
        log__level="debug",
        receipts__keep=9,
    )
    taken, later = merged(old, new, {"inference"})
    assert (taken.workers, taken.http.port, taken.receipts.keep) == (2, 1, old.receipts.keep)
    assert (taken.http.body_limit, taken.log.level) == (7, "debug")
    assert taken.sections == {"inference": {"model": "a"}, "relay": {"allow": ["b"]}}
    assert later == ["workers", "http.port", "receipts.keep", "inference.model"]


def test_a_section_that_is_new_or_gone_waits_where_it_is_fixed() -> None:
    with_it, without = config(inference__model="a"), config()
    assert merged(without, with_it, {"inference"}) == (without, ["inference.model"])
    assert merged(with_it, without, {"inference"}) == (with_it, ["inference.model"])


def test_the_page_names_what_takes_a_restart() -> None:
    page = (Path(__file__).parents[3] / "docs" / "workers.md").read_text()
    said = page.partition("Some take a restart")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([^`]+)`", said))
    old = config()
    for name in KERNEL_KEYS:
        value = getattr(old, name)
        fields = value.__struct_fields__ if isinstance(value, msgspec.Struct) else ()
        for field in fields or ("",):
            inner = msgspec.structs.replace(value, **{field: object()}) if field else object()
            new = msgspec.structs.replace(old, **{name: inner})
            dotted = f"{name}.{field}" if field else name
            waits = merged(old, new, ())[1] == [dotted]
            assert waits == bool({name, dotted} & named), dotted
