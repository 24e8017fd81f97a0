"""Which settings an order may change."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam import HyperbeamError
from hyperbeam.config import Config, load
from hyperbeam.errors import BadRequest, ConfigError, Forbidden
from hyperbeam.message import Atom, Link
from hyperbeam.operator import settings, state

NAMES = settings.changeable({"cache": frozenset({"writers"})})
SAFE = ("access.required", "http.cors", "log.level", "print", "cache.writers")
UNSAFE = [
    "device_path",
    "required",
    "home",
    "routes",
    "operator",
    "wallet",
    "sign_replies",
    "hooks",
    "on",
    "store.kind",
    "http.host",
    "http.port",
    "http.trusted_proxies",
    "workers",
    "inference.backend",
]


def config() -> Config:
    return load(environment={})


def test_only_what_reaches_nothing_else_can_change() -> None:
    assert set(SAFE) <= set(NAMES)
    assert not set(UNSAFE) & set(NAMES)


@pytest.mark.parametrize("name", [*UNSAFE, "hooks.request"])
def test_what_is_set_in_the_file_alone(name: str) -> None:
    for value in ("x", {}, []):
        with pytest.raises(Forbidden, match=f"{name} is set in hyperbeam.toml alone"):
            settings.flattened({name: value}, NAMES, {"inference.backend"})


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "nonsense",
        "nonsense.a",
        "inference.nonsense",
        "\ud800",
        "cache",
        "log",
        "cache.else",
        "log.level.deep",
        "http.prot",
        "home.a",
        "sections",
        "file",
    ],
)
def test_what_is_no_setting(name: str) -> None:
    for value in ("x", {}):
        with pytest.raises(BadRequest, match="there is no setting"):
            settings.flattened({name: value}, NAMES, {"inference.backend"})


def test_a_long_name_is_not_told_back_whole() -> None:
    for name in ("x" * 5000, f"log.{'x' * 5000}"):
        with pytest.raises(HyperbeamError) as caught:
            settings.flattened({name: 1}, NAMES)
        assert "x" * 101 not in caught.value.detail


def test_sections_and_dotted_names_and_dashes_are_the_same() -> None:
    for wanted in ({"http": {"body-limit": 5}}, {"http.body_limit": 5}, {"http.body-limit": 5}):
        assert settings.flattened(wanted, NAMES) == {"http.body_limit": 5}
    with pytest.raises(BadRequest, match="twice"):
        settings.flattened({"http.body_limit": 5, "http": {"body-limit": 6}}, NAMES)


def test_lists_as_text() -> None:
    assert settings.flattened({"print": "a,b"}, NAMES) == {"print": ["a", "b"]}
    assert settings.flattened({"http.cors": '["https://a.example"]'}, NAMES) == {
        "http.cors": ["https://a.example"]
    }


def test_what_is_kept_is_plain() -> None:
    (value,) = settings.flattened({"log.level": Atom("debug")}, NAMES).values()
    assert type(value) is str
    for odd in (Link("a" * 43), b"a", "\ud800", ["\udfff"]):
        with pytest.raises(BadRequest):
            settings.flattened({"http.cors": odd}, NAMES)


def test_an_empty_list_is_shown_as_one() -> None:
    shown = settings.values(config(), ["print", "http.cors", "log.level"], {})
    assert shown == {"print": [], "http.cors": ["*"], "log.level": "info"}


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text()),
    )
)
def test_whatever_is_wanted_counts_or_is_refused(wanted: dict[str, Any]) -> None:
    before = config()
    try:
        changed = settings.overlaid(before, settings.flattened(wanted, NAMES))
    except HyperbeamError as error:
        assert error.status == 400 or isinstance(error, ConfigError)
    else:
        for name in (*Config.__struct_fields__,):
            if name not in ("access", "http", "log", "print", "sections"):
                assert getattr(changed, name) == getattr(before, name)
    assert before == config()


def test_what_was_changed_counts_from_the_start(tmp_path: Any) -> None:
    given = load(environment={}, flags={"home": str(tmp_path), "log.level": "error"})
    assert settings.with_orders(given) == given
    state.save(tmp_path, state.State(settings={"log.level": "debug", "cache.writers": "all"}))
    changed = settings.with_orders(given)
    assert changed.log.level == "debug"
    assert changed.sections["cache"]["writers"] == "all"
    state.save(tmp_path, state.State(settings={"log.level": "loud"}))
    with pytest.raises(ConfigError):
        settings.with_orders(given)
