"""A route as an order has it, and as it stands in the table's file."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import hyperbeam
from hyperbeam.errors import BadRequest, ConfigError, Forbidden, HyperbeamError
from hyperbeam.message import Atom, Link
from hyperbeam.operator import routes

from .conftest import TABLE

NODE = "http://127.0.0.1:10"
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PLAIN = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, PLAIN, max_size=6))
@example({"a\nb": '"""\\ \x00\x1f\x7f\x85\u2028'})
@example({"": {"": [{}, [], ""]}, "[[x]]": "]]\n[[routes]]\ntemplate = '.*'", "a.b": 1e300})
def test_what_is_written_is_what_is_read(route: dict[str, Any]) -> None:
    try:
        text = routes._table(route)
    except BadRequest as error:
        assert "levels deep" in error.detail
    else:
        assert tomllib.loads(f"[[routes]]\n{text}") == {"routes": [route]}


@given(TEXT)
def test_no_text_ends_its_route(text: str) -> None:
    written = routes._table({"template": text, text: text})
    assert len(written.splitlines() if text.isascii() else written.split("\n")) <= 3
    assert list(tomllib.loads(f"[[routes]]\n{written}")) == ["routes"]


@pytest.mark.parametrize("value", [None, b"a", Link("a" * 43), "\ud800", [None], {"a": b""}])
def test_what_no_table_can_hold(value: Any) -> None:
    with pytest.raises(BadRequest):
        routes._table({"template": value})


def test_an_atom_is_text() -> None:
    assert routes._table({"strategy": Atom("Random")}) == 'strategy = "Random"\n'


def test_a_route_is_behind_the_others_and_the_file_keeps_its_mode(table: Path) -> None:
    table.chmod(0o640)
    before = table.read_text()
    route = {"template": "/y/.*", "node": NODE, "retries": 3}
    parsed, path, write, restore = routes.appended(table, route)
    assert path == table
    assert table.read_text() == before
    assert [one.template for one in parsed.routes] == ["/x/.*", "/y/.*"]
    write()
    assert tomllib.loads(table.read_text())["routes"][1] == route
    assert table.read_text().startswith(before)
    assert table.stat().st_mode & 0o777 == 0o640
    restore()
    assert table.read_text() == before
    assert [one.name for one in table.parent.iterdir()] == [table.name]


def test_a_link_to_the_table_stays_one(table: Path) -> None:
    real = table.rename(table.parent / "real.toml")
    table.symlink_to(real)
    _, _, write, _ = routes.appended(table, {"template": "/y/.*", "node": NODE})
    write()
    assert table.is_symlink()
    assert "/y/.*" in real.read_text()


def test_an_empty_table(table: Path) -> None:
    table.write_text("")
    parsed, *_ = routes.appended(table, {"template": "/y/.*", "node": NODE})
    assert len(parsed.routes) == 1


@pytest.mark.parametrize(
    "route",
    [
        {},
        {"template": "/y/.*"},
        {"template": "/z(.*", "node": NODE},
        {"template": "/y", "node": NODE, "nonsense": 1},
        {"template": 7, "node": NODE},
        {"template": "/y", "nodes": [7]},
        {"template": "/y", "node": "http://user:hunter2@127.0.0.1:1"},
        {"template": "/y", "node": "file:///etc/passwd"},
        {"template": "/y", "node": NODE, "priority": float("nan")},
        {"template": "/y" + "x" * 70_000, "node": NODE},
    ],
)
def test_what_is_no_route(table: Path, route: dict[str, Any]) -> None:
    with pytest.raises((BadRequest, ConfigError)) as caught:
        routes.appended(table, route)
    assert "hunter2" not in caught.value.detail
    assert table.read_text() == TABLE


@pytest.mark.parametrize(
    "node",
    [
        {"prefix": NODE, "auth": "env:HOME"},
        {"prefix": NODE, "auth": "file:/etc/passwd"},
        {"prefix": NODE, "headers": {"a": "b"}},
        {"prefix": NODE, "opts": {"auth": "env:HOME"}},
        {"prefix": "http+unix:///run/docker.sock"},
        {"prefix": "HTTP+UNIX:///run/docker.sock"},
        "http+unix:///run/docker.sock",
    ],
)
def test_secrets_and_sockets_of_the_machine(table: Path, node: Any) -> None:
    for route in ({"node": node}, {"nodes": [NODE, node]}):
        with pytest.raises(Forbidden):
            routes.appended(table, {"template": "/y/.*", **route})
    assert table.read_text() == TABLE


def test_the_table_of_the_software_is_nobodys_to_change() -> None:
    shipped = Path(hyperbeam.__file__).parent / "routing" / "routes.toml"
    with pytest.raises(HyperbeamError) as caught:
        routes.appended(shipped, {"template": "/y/.*", "node": NODE})
    assert caught.value.status == 409


def test_a_link_to_the_table_of_the_software(tmp_path: Path) -> None:
    link = tmp_path / "routes.toml"
    link.symlink_to(Path(hyperbeam.__file__).parent / "routing" / "routes.toml")
    with pytest.raises(HyperbeamError, match="comes with the software"):
        routes.appended(link, {"template": "/y/.*", "node": NODE})


def test_the_table_of_a_checkout_is_written_where_it_is_named(tmp_path: Path, table: Path) -> None:
    shipped = tmp_path / "hyperbeam" / "routing" / "routes.toml"
    shipped.parent.mkdir(parents=True)
    shipped.write_text(TABLE)
    route = {"template": "/y/.*", "node": NODE}
    with pytest.raises(HyperbeamError, match="comes with the software"):
        routes.appended(table, route, named=False)
    _, path, write, _ = routes.appended(table, route)
    write()
    assert path == table
    assert "/y/.*" in table.read_text()


def test_a_table_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        routes.appended(tmp_path / "none.toml", {"template": "/y/.*", "node": NODE})
