import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam import ConfigError, NoRoute
from hyperbeam.routing import RouteTable, load_routes, parse_routes

ROOT = Path(__file__).parents[3]


A = '[[routes]]\ntemplate = "/a"\nnode = "http://h"\n'
ONE = '[[routes]]\ntemplate = "/a"\nnodes = [{{ prefix = "http://h", {} }}]'


def table(folder: Path, text: str) -> RouteTable:
    file = folder / "routes.toml"
    file.write_text(text)
    return load_routes(file)


def test_the_checkout_and_the_package_have_the_same_default() -> None:
    packaged = ROOT / "hyperbeam" / "routing" / "routes.toml"
    assert (ROOT / "routes.toml").read_text() == packaged.read_text()


def test_default_routes_reach_inference() -> None:
    routes = load_routes(ROOT / "routes.toml")
    for path in ("/v1/chat/completions", "/v1/models?x=1", "/health"):
        assert routes.require(path, {}).device == "inference@1.0"
    assert routes.match("/v2/models", {}) is None
    assert routes.match("/healthy", {}) is None


def test_templates_match_whole_paths_in_order_of_priority(tmp_path: Path) -> None:
    routes = table(
        tmp_path,
        """
        [[routes]]
        template = "/a/.*"
        node = "http://127.0.0.1:1"
        [[routes]]
        template = "/a/b"
        priority = -1
        node = "http://127.0.0.1:2"
        [[routes]]
        template = "/a"
        node = "http://127.0.0.1:3"
        """,
    )
    assert routes.require("/a/b", {}).nodes[0].prefix.endswith(":2")
    assert routes.require("/a/c", {}).nodes[0].prefix.endswith(":1")
    assert routes.require("/a", {}).nodes[0].prefix.endswith(":3")
    with pytest.raises(NoRoute, match=re.escape("/a/b, /a/.*, /a")):
        routes.require("/b/a", {})


def test_a_template_of_keys_matches_each(tmp_path: Path) -> None:
    routes = table(
        tmp_path,
        """
        [[routes]]
        template = { path = "/x/.*", method = "POST", tier = "gold|silver" }
        node = "http://127.0.0.1:1"
        """,
    )
    assert routes.match("/x/1", {"method": "POST", "tier": "gold"}) is not None
    assert routes.match("/x/1", {"method": "POST", "tier": "golden"}) is None
    assert routes.match("/x/1", {"method": "POST"}) is None
    assert routes.match("/y/1", {"method": "POST", "tier": "gold"}) is None


def test_prefix_suffix_and_rewriting(tmp_path: Path) -> None:
    routes = table(
        tmp_path,
        r"""
        [[routes]]
        template = "/old/.*"
        [[routes.nodes]]
        prefix = "http://127.0.0.1:1/base"
        suffix = "&k=1"
        match = "^/old/(.*)"
        with = '/new/\1'
        """,
    )
    node = routes.require("/old/a?b=c", {}).nodes[0]
    assert node.target("/old/a?b=c") == "http://127.0.0.1:1/base/new/a?b=c&k=1"


@pytest.mark.parametrize(
    ("node", "path"),
    [
        ('{ prefix = "http://localhost", match = "^/a", with = "" }', "/a:18398/x"),
        ('{ prefix = "http://localhost", match = "^/a", with = "" }', "/a.evil.example/x"),
        ('{ prefix = "http://localhost", match = "^/a", with = "" }', "/a@evil.example/x"),
        ('{ prefix = "http://127.0.0" , match = "^/a/", with = "" }', "/a/.1:18398/x"),
        ('{ prefix = "http://localhost", match = "^/a(.*)", with = "//evil.example" }', "/a"),
        ('{ prefix = "http://localhost:80/" }', "//evil.example/x"),
    ],
)
def test_no_path_adds_to_the_host(tmp_path: Path, node: str, path: str) -> None:
    routes = table(tmp_path, f'[[routes]]\ntemplate = "/.*"\nnodes = [{node}]')
    chosen = routes.routes[0].nodes[0]
    assert urlsplit(chosen.target(path)).netloc == urlsplit(chosen.prefix).netloc


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('[[routes]]\ntemplate = "/a"', ["route 1", "no nodes"]),
        ('[[routes]]\nnode = "http://127.0.0.1"', ["template"]),
        ('[[routes]]\ntemplate = "/("\nnode = "http://h"', ["route 1", "/("]),
        ('[[routes]]\ntemplate = "/(?=a)"\nnode = "http://h"', ["route 1"]),
        ('[[routes]]\ntemplate = "/a"\nnode = "h:80"', ["prefix", "h:80"]),
        ('[[routes]]\ntemplate = "/a"\nnode = "http://h:99999"', ["prefix"]),
        ('[[routes]]\ntemplate = "/a"\nnode = "http://u:secret@h"', ["secret"]),
        ('[[routes]]\ntemplate = "/a"\nnodes = [{ backend = "other" }]', ["other", "local"]),
        (
            '[[routes]]\ntemplate = "/a"\nnodes = [{ backend = "local", prefix = "http://h" }]',
            ["either"],
        ),
        ('[[routes]]\ntemplate = "/a"\nnodes = [{ backend = "local" }]\ndevice = "x"', ["'x'"]),
        ('[[routes]]\ntemplate = "/a"\nnode = "http://h"\nstrategie = "Random"', ["strategie"]),
        ('[[routes]]\ntemplate = "/a"\nnode = "http://h"\npriority = "high"', ["priority"]),
        ('[[routes]]\ntemplate = "/a"\nnodes = [{ backend = "local" }]', ["device"]),
        (
            '[[routes]]\ntemplate = "/a"\n[[routes.nodes]]\nprefix = "http://h"\nmatch = "a"\n'
            "with = '\\3'",
            ["group 3"],
        ),
        ('[[routes]]\ntemplate = "/a"\nnodes = [{ prefix = "http://h", with = "x" }]', ["match"]),
        ('[[routes]]\ntemplate = "/a"\nnode = "http://h\\r\\nx: y"', ["prefix"]),
        ('[[routes]]\ntemplate = "/a"\nnode = "http://ⓛocalhost"', ["prefix"]),
        ('[[routes]]\ntemplate = "/a"\nnode = "http://h?x"', ["suffix"]),
        ('[[routes]]\ntemplate = "/a"\nnode = "http://h"\nnodes = ["http://i"]', ["both"]),
        ("template = 1", ["template"]),
        ("[[routes]\n", ["line 1"]),
        (A + 'strategy = "Least-loaded"', [":4: ", "did you mean 'Least-Loaded'"]),
        (A + 'strategy = "Fastest"', ["Round-Robin", "Prefix-Affinity"]),
        (A + 'strategy = "Nearest"', ["wallet"]),
        (A + "timeout = 0", [":4: ", "timeout"]),
        (A + "timeout = { first-bite = 1 }", [":4: ", "did you mean 'first-byte'"]),
        (A + "limits = { in-flight = -1 }", [":4: ", "in-flight"]),
        (A + 'health = "health"', [":4: ", "/health"]),
        (A + "responses = 2", [":4: ", "1 nodes"]),
        (A + "retries = 1.5", ["retries"]),
        (A + "\n[[routes]]\n" + 'template = "/a"\nnode = "http://i"', [":6: ", "route 1"]),
        (ONE.format('auth = "sk-1234567890abcdef"'), ["auth", "env:NAME"]),
        (ONE.format('auth = "env:NO_SUCH_VARIABLE"'), ["NO_SUCH_VARIABLE is not set"]),
        (ONE.format('auth = "file:/no/such"'), ["cannot be read"]),
        (ONE.format("headers = { Authorization = 'Bearer x' }"), ["a secret", "env:NAME"]),
        (ONE.format("headers = { x-key = 'hf_AbCdEfGhIjKlMnOpQrStUv' }"), ["a secret"]),
        (ONE.format("headers = { x-a = 'AbCdEfGhIjKlMnOpQrStUvWxYz012345' }"), ["a secret"]),
        (ONE.format("suffix = '?api_key=1'"), ["a secret"]),
        (ONE.format('headers = { host = "x" }'), ["host"]),
        (ONE.format('headers = { "a b" = "x" }'), ["a b"]),
        (ONE.format('opts = { auth = "forward" }, auth = "forward"'), ["twice"]),
        (ONE.format("weight = 0"), ["weight"]),
        (ONE.format('prefx = "x"'), ["did you mean 'prefix'", ":3: "]),
        ('[[routes]]\ntemplate = "/a"\nnodes = ["http://h", "http://h/"]', ["stands twice"]),
        ('[[routes]]\ntemplate = "/(a)\\\\1"\nnode = "http://h"', ["backreference"]),
        ('[[routes]]\ntemplate = "/' + "(a{1000}){999}" + '"\nnode = "http://h"', ["no pattern"]),
    ],
)
def test_a_broken_table_is_refused_by_name(tmp_path: Path, text: str, names: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        table(tmp_path, text)
    for name in [str(tmp_path / "routes.toml"), *names]:
        assert name in refused.value.detail
    if "secret@" in text:
        assert "secret@" not in refused.value.detail


def test_the_example_of_the_docs_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_KEY", "x")
    text = (ROOT / "docs" / "routes.md").read_text().partition("```toml\n")[2].partition("```")[0]
    assert [node.weight for node in parse_routes(text, "docs").routes[0].nodes] == [1, 1, 4]


def test_a_pattern_that_would_backtrack_for_ever_answers_at_once(tmp_path: Path) -> None:
    routes = table(tmp_path, '[[routes]]\ntemplate = "/(a+)+b"\nnode = "http://127.0.0.1:1"')
    assert routes.match("/" + "a" * 20_000, {}) is None


@given(st.text(max_size=300))
def test_any_path_is_matched_or_not(path: str) -> None:
    route = load_routes(ROOT / "routes.toml").match(path, {})
    assert (route is not None) == (
        (bare := path.partition("?")[0]) == "/health"
        or (bare.startswith("/v1/") and "\n" not in bare)
    )
