"""The grammar of paths, after upstream hb_singleton's tests and what real nodes answered."""

from __future__ import annotations

from typing import Any

import pytest

from hyperbeam.errors import BadRequest
from hyperbeam.message import Atom, Link, Message
from hyperbeam.path import (
    MAX_DEPTH,
    MAX_PAIRS,
    MAX_PART_BYTES,
    MAX_PARTS,
    Resolve,
    Step,
    decode_typed,
    parse,
)

ID = "e5ohB7TgMYRoc0BLllkmAqkqLy1SrliEkOPJlNPXBQ8"


def sub(path: str) -> Resolve:
    return Resolve(tuple(parse(path)))


def refused(path: str, keys: Message | None = None) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(path, keys)
    assert caught.value.status == 400
    return caught.value


def value(pair: str) -> Any:
    """What `&v...` gives in a path."""
    return parse(f"/~message@1.0&v{pair}/v")[0].message["v"]


def test_device_with_a_pair_then_a_key() -> None:
    assert parse("/~message@1.0&hello=world/hello") == [
        Step("", {"hello": "world"}, device="message@1.0", text="~message@1.0&hello=world"),
        Step("hello", text="hello"),
    ]


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("", [""]),
        ("/", [""]),
        ("///", [""]),
        ("?a=1", [""]),
        ("/?a=1", [""]),
        ("a", ["", "a"]),
        ("/a", ["", "a"]),
        ("/a/b/c", ["", "a", "b", "c"]),
        ("/a//b///c/", ["", "a", "b", "c"]),
        ("//~message@1.0//a/", ["", "a"]),
        ("/Hello/WORLD", ["", "hello", "world"]),
        ("/x_custom", ["", "x_custom"]),
        ("/v1/chat/completions", ["", "v1", "chat", "completions"]),
        ("/a=b/c@d/llama3:8b", ["", "a=b", "c@d", "llama3:8b"]),
        ("/models/command-r+", ["", "models", "command-r+"]),
        ("/report(1).txt", ["", "report(1).txt"]),
        ("/f(a/b)g", ["", "f(a/b)g"]),
        ("/(a)(b)", ["", "(a)(b)"]),
    ],
)
def test_keys(path: str, keys: list[str]) -> None:
    assert [step.key for step in parse(path)] == keys


def test_id_as_base() -> None:
    base, step = parse(f"/{ID}/some-other", {"method": "GET"})
    assert base == Step("", id=ID, text=ID)
    assert step == Step("some-other", {"method": "GET"}, text="some-other")


def test_id_with_a_device_and_pairs() -> None:
    base, step = parse(f"/{ID}~process@1.0&x=1/now")
    assert (base.id, base.device, base.message) == (ID, "process@1.0", {"x": "1"})
    assert step.key == "now"


def test_id_later_in_the_path() -> None:
    steps = parse(f"/~cache@1.0/read/{ID}")
    assert [(step.key, step.id) for step in steps] == [("", None), ("read", None), ("", ID)]


def test_device_of_a_key() -> None:
    base, step = parse("/serialize~json@1.0&a=1")
    assert base == Step("")
    assert (step.key, step.device, step.message) == ("serialize", "json@1.0", {"a": "1"})


def test_device_alone_in_the_middle() -> None:
    _, middle, last = parse("/~message@1.0&a=1/~json@1.0/serialize")
    assert (middle.key, middle.device) == ("", "json@1.0")
    assert last.key == "serialize"


def test_tilde_and_plus_in_a_value_are_text() -> None:
    assert value("=a~b+c") == "a~b+c"


def test_sub_path_as_part() -> None:
    steps = parse("/a/(x/y/z)/z")
    assert steps[2] == Step("", sub=sub("x/y/z"), text="(x/y/z)")
    assert steps[2].sub is not None
    assert [step.key for step in steps[2].sub.steps] == ["", "x", "y", "z"]
    assert steps[3].key == "z"


def test_sub_path_as_base() -> None:
    steps = parse("/(~message@1.0&q=x/q)/z")
    assert len(steps) == 2
    assert steps[0].sub == sub("~message@1.0&q=x/q")


def test_sub_path_with_device_and_pairs() -> None:
    step = parse("/a/(x/y)~json@1.0&k=v")[2]
    assert (step.sub, step.device, step.message) == (sub("x/y"), "json@1.0", {"k": "v"})


def test_sub_path_as_value() -> None:
    steps = parse("/part1/part2&test=1&b=(/x/y&c=(z/w)&d)/part3")
    assert [step.key for step in steps] == ["", "part1", "part2", "part3"]
    assert steps[2].message == {"test": "1", "b": sub("/x/y&c=(z/w)&d")}
    inner = steps[2].message["b"].steps[2]
    assert inner.message == {"c": sub("z/w"), "d": True}


def test_sub_path_as_device() -> None:
    step = parse("/a~(x/y&k=v)&z=1")[1]
    assert (step.device, step.message) == (sub("x/y&k=v"), {"z": "1"})
    assert parse("/~(x)")[0].device == sub("x")


def test_sub_path_sees_no_keys_of_the_request() -> None:
    step = parse("/a/(x/y)?q=1", {"host": "h"})[2]
    assert step.sub == sub("x/y")


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("", True),
        ("=", ""),
        ("=Abc", "Abc"),
        ("=a=b", "a=b"),
        ("=a,b;c:d@e!$'*", "a,b;c:d@e!$'*"),
        ("=hello%20(world)", "hello (world)"),
        ("=f(x&y/z)", "f(x&y/z)"),
        ("=(555)%20123%20(home)", "(555) 123 (home)"),
        ("=%28x%29", "(x)"),
        ("=a%26b%3Dc%2Fd", "a&b=c/d"),
        ("=100%25", "100%"),
        ("=%2541", "%41"),
        ("=%E2%82%AC", "€"),
        ("=€", "€"),
        ("=%2B+", "++"),
    ],
)
def test_untyped_value(pair: str, expected: object) -> None:
    assert value(pair) == expected


def test_names_become_lower_case_and_the_last_of_a_name_wins() -> None:
    assert parse("/a&Key=One&KEY=Two&&b")[1].message == {"key": "Two", "b": True}
    base, step = parse("/~Stack@1.0/Key~JSON@1.0")
    assert (base.device, step.key, step.device) == ("stack@1.0", "key", "json@1.0")


def test_a_name_as_long_as_an_id_keeps_its_case() -> None:
    assert parse(f"/a&{ID}=1")[1].message == {ID: "1"}


@pytest.mark.parametrize("mark", ["+", "%2B", "%2b", "%20", " "])
@pytest.mark.parametrize("where", ["/a&n{}integer=7", "/a?n{}integer=7"])
def test_type_mark(where: str, mark: str) -> None:
    assert parse(where.format(mark))[1].message == {"n": 7}


TYPED: list[tuple[str, str, Any]] = [
    ("integer", "7", 7),
    ("INTEGER", "-7", -7),
    ("int", "007", 7),
    ("integer", "9007199254740993", 2**53 + 1),
    ("integer", "9" * 512, 10**512 - 1),
    ("float", "1.5", 1.5),
    ("float", "-2", -2.0),
    ("float", "1.50000000000000000000e+00", 1.5),
    ("float", "1.5e 3", 1500.0),
    ("float", "25e-1", 2.5),
    ("boolean", "true", True),
    ("boolean", "False", False),
    ("atom", "true", True),
    ("atom", "false", False),
    ("atom", "null", None),
    ("atom", "not_found", Atom("not_found")),
    ("list", "1,2,3", [1, 2, 3]),
    ("list", "", []),
    ("list", '"apple", 1, "ba\\"na", 1.5, ?1, ?0', ["apple", 1, 'ba"na', 1.5, True, False]),
    ("list", "a, true, null", [Atom("a"), True, None]),
    ("list", '"(ao-type-integer) 4", "x"', [4, "x"]),
    ("list", '"(ao-type-list) 1, 2"', [[1, 2]]),
    ("map", "a=1", {"a": 1}),
    ("map", 'Key1="val 1", key2', {"key1": "val 1", "key2": True}),
    ("map", "", {}),
    ("binary", "abc=(1)", "abc=(1)"),
    ("link", ID, Link(ID)),
    ("resolve", "/x/y?z=1", sub("/x/y?z=1")),
    ("res", "(x/y)", sub("x/y")),
]


@pytest.mark.parametrize(("kind", "text", "expected"), TYPED)
def test_decode_typed(kind: str, text: str, expected: Any) -> None:
    decoded = decode_typed(kind, text, "n")
    assert decoded == expected
    assert type(decoded) is type(expected)
    if isinstance(expected, list):
        assert [type(item) for item in decoded] == [type(item) for item in expected]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "abc"),
        ("integer", ""),
        ("integer", "1.5"),
        ("integer", "1_000"),
        ("integer", " 1"),
        ("integer", "+1"),
        ("integer", "١"),
        ("integer", "1\n"),
        ("integer", "9" * 513),
        ("integer", "9" * 10_000),
        ("float", ""),
        ("float", "nan"),
        ("float", "inf"),
        ("float", "1e400"),
        ("float", "1."),
        ("float", "0x1p3"),
        ("float", "1_0.0"),
        ("boolean", "yes"),
        ("boolean", "1"),
        ("boolean", ""),
        ("atom", ""),
        ("atom", "two words"),
        ("atom", "9lives"),
        ("list", "1 2"),
        ("list", '"open'),
        ("list", '"(ao-type-integer) x"'),
        ("map", "=1"),
        ("map", "a=1 b=2"),
        ("map", "priv=1"),
        ("link", "abc"),
        ("link", ID + "x"),
        ("resolve", ""),
        ("resolve", "//"),
        ("resolve", "()"),
        ("resolve", "(a"),
        ("resolve", "a&b+integer=x"),
        ("", "1"),
        ("nosuch", "1"),
        ("integer+integer", "1"),
    ],
)
def test_badly_typed_values_are_refused(kind: str, text: str) -> None:
    with pytest.raises(BadRequest):
        decode_typed(kind, text, "n")


def test_a_badly_typed_value_is_named() -> None:
    error = refused("/~message@1.0&Count+integer=abc/count")
    assert error.error == "bad_type"
    assert error.param == "count"
    assert "'abc'" in error.detail
    assert "integer" in error.detail


def test_an_unknown_type_lists_those_there_are() -> None:
    assert "integer, float, boolean" in refused("/a?n+number=1").detail


@pytest.mark.parametrize("path", ["/a&n+integer", "/a?n+integer", "/a&n+integer=(x)"])
def test_a_type_needs_a_plain_value(path: str) -> None:
    assert refused(path).param == "n"


def test_typed_sub_paths() -> None:
    assert value("+resolve=(x/y)") == sub("x/y")
    assert value("+resolve=x") == sub("x")
    assert value("+resolve=%2Fx%2Fy%2526") == sub("/x/y%26")
    assert parse("/a?k+resolve=/x/y%3Fz=1")[1].message == {"k": sub("/x/y?z=1")}
    assert parse("/a", {"k+resolve": "/x/y"})[1].message == {"k": sub("/x/y")}


def test_a_typed_map_and_list_in_a_path() -> None:
    assert value("+map=a%3D1") == {"a": 1}
    assert value("+map=a=1") == {"a": 1}
    assert value("+list=%22apple%22,1,%22banana%22") == ["apple", 1, "banana"]


def test_query_and_headers_are_on_every_step() -> None:
    for step in parse("/~message@1.0/a/b~json@1.0?x=1", {"host": "h", "body": b"\xff"}):
        assert step.message == {"host": "h", "body": b"\xff", "x": "1"}


def test_ids_and_sub_paths_take_only_what_is_meant_for_them() -> None:
    private = {"client": "127.0.0.1"}
    keys = {"host": "h", "1.h": "v", "priv": private}
    base, identified, inner = parse(f"/{ID}/{ID}&i=1/(x)?q=1&1.s=2", keys)
    assert base.message == {"priv": private}
    assert identified.message == {"i": "1", "h": "v", "s": "2", "priv": private}
    assert inner.message == {"priv": private}


def test_which_key_wins() -> None:
    """Scoped over unscoped, query over headers, both over the part's own pairs."""
    assert parse("/a&k=inline")[1].message == {"k": "inline"}
    assert parse("/a&k=inline", {"k": "header"})[1].message == {"k": "header"}
    assert parse("/a&k=inline?k=query", {"k": "header"})[1].message == {"k": "query"}
    scoped = parse("/a&k=inline?k=query", {"k": "header", "1.k": "scoped"})
    assert [step.message["k"] for step in scoped] == ["query", "scoped"]
    both = parse("/a?1.k=query", {"1.k": "header"})
    assert both[1].message == {"k": "query"}


def test_steps_do_not_share_their_message() -> None:
    keys = {"k": "v"}
    first, second = parse("/a", keys)
    first.message["k"] = "changed"
    assert second.message == keys == {"k": "v"}


def test_the_path_among_the_keys_is_ignored() -> None:
    assert parse("/a", {"path": "/b", "k": "v"})[1].message == {"k": "v"}
    assert parse("/a?path=/c")[1].message == {"path": "/c"}


def test_scoped_and_typed_keys() -> None:
    for steps in (
        parse("/a/b/c", {"2.test-key+integer": "123"}),
        parse("/a/b/c?2.test-key+integer=123"),
        parse("/a/b/c?2%2ETest-Key%2Binteger=123"),
    ):
        assert [step.message for step in steps] == [{}, {}, {"test-key": 123}, {}]


def test_scope_zero_is_the_base() -> None:
    assert [step.message for step in parse("/a?0.k=v")] == [{"k": "v"}, {}]
    assert [step.message for step in parse("/~message@1.0/a?0.k=v&1.l")] == [
        {"k": "v"},
        {"l": True},
    ]


@pytest.mark.parametrize("name", ["-1.k", "-0.k", "2.k", "64.k", "9999999999.k", "9" * 5000 + ".k"])
def test_a_scope_that_the_path_has_not(name: str) -> None:
    assert refused(f"/a?{name}=v").error == "bad_scope"
    assert parse("/a", {name: "v"})[1].message == {name: "v"}


@pytest.mark.parametrize(
    "name", ["a.b", "x.y.z", "1.2.3", "1.", ".1", ".", "..", "1.5x.", "x-1.y", "²."]
)
def test_other_names_with_dots_are_names(name: str) -> None:
    assert parse(f"/a?{name}=v")[1].message == {name: "v"}
    assert parse("/a", {name: "v"})[1].message == {name: "v"}


def test_query_is_form_encoded() -> None:
    steps = parse("/a?q=a+b%2Bc&Empty=&flag&&u=%E2%82%AC&p=(x&r=y)&g=(z)&eq=a=b&s=/x?y&include[]=z")
    assert steps[1].message == {
        "q": "a b+c",
        "empty": "",
        "flag": True,
        "u": "€",
        "p": "(x",
        "r": "y)",
        "g": "(z)",
        "eq": "a=b",
        "s": "/x?y",
        "include[]": "z",
    }


def test_typed_headers() -> None:
    keys = {"n+integer": "5", "b+boolean": b"true", "c+link": ID}
    assert parse("/a", keys)[1].message == {"n": 5, "b": True, "c": Link(ID)}


@pytest.mark.parametrize("typed", [b"\xff", 5, None, {"a": 1}])
def test_a_typed_header_is_text(typed: object) -> None:
    assert refused("/a", {"n+integer": typed}).param == "n"


def test_encoded_separators_are_text() -> None:
    step = parse("/~inference@1.0/models/Qwen%2FQwen2.5-0.5b-instruct")[2]
    assert step.key == "qwen/qwen2.5-0.5b-instruct"
    assert step.text == "Qwen/Qwen2.5-0.5b-instruct"
    steps = parse("/a%26b%3Dc/%28x%29/what%3F/d%2Be%20f")
    assert [step.key for step in steps] == ["", "a&b=c", "(x)", "what?", "d+e f"]
    assert all(step.sub is None for step in steps)


def test_unreserved_characters_are_the_same_encoded() -> None:
    plain = parse("/~message@1.0&a-b=1/c~json@1.0")
    encoded = parse("/%7Emessage%401%2E0&a%2Db=1/%63%7ejson@1.0")
    assert encoded[0].device == "message@1.0"
    assert [(s.key, s.device, s.message, s.text) for s in encoded] == [
        (s.key, s.device, s.message, s.text) for s in plain
    ]


def test_decoding_happens_once() -> None:
    assert parse("/a%252Fb")[1].key == "a%2fb"


@pytest.mark.parametrize(
    "path",
    [
        "/(a",
        "/a)",
        "/)(",
        "/a/(b/c",
        "/a&k=(b",
        "/a&k=:)",
        "/a~(b",
        "/(a?x=1)",
        "/()",
        "/(/)",
        "/a&k=()",
        "/a~()",
        "/~",
        "/a~",
        "/a~&k=v",
        "/a~b@1.0~c@1.0",
        "/&k=v",
        "/&",
        "/a&=v",
        "/a&+integer=5",
        "/a?=v",
        "/a?+integer=5",
    ],
)
def test_malformed_paths_are_refused(path: str) -> None:
    assert refused(path).error == "bad_path"


@pytest.mark.parametrize(
    "path",
    [
        "/%zz",
        "/%",
        "/a%4",
        "/~message@1.0&a=%zz/a",
        "/~m%g0@1.0",
        "/a?x=%zz",
        "/a?%=1",
        "/a?x=100%",
        "/%ff",
        "/a&k=%C3",
        "/a&k=%C3/%A9",
        "/%ED%A0%80",
        "/%C0%AF",
        "/a?x=%F5%80%80%80",
        "/a\x00b",
        "/a%00b",
        "/a\nb",
        "/a&k=x%0D%0Ay",
        "/a&k%09=1",
        "/a?x=%00",
        "/a?x=%7F",
        "/a\x7f",
        "/%C2%85",
        "/\ud800",
        "/a?x=\udcff",
        "/(a/%zz)",
        "/a&k=(b%00)",
    ],
)
def test_bad_encoding_is_refused(path: str) -> None:
    error = refused(path)
    assert error.error == "bad_encoding"
    assert error.detail.isprintable()
    error.detail.encode()


@pytest.mark.parametrize(
    "path",
    [
        "/a&priv=1",
        "/a&Priv.x=1",
        "/a?priv=1",
        "/a?PRIV.x=1",
        "/a?1.priv=1",
        "/a?priv+map=a",
        "/a&k=(b&priv)",
    ],
)
def test_private_keys_cannot_be_set(path: str) -> None:
    assert "private" in refused(path).detail


def test_headers_cannot_reach_private_keys() -> None:
    private: Message = {"headers": {}}
    keys = {"priv": private, "0.priv": "x", "1.priv": "y"}
    for step in parse("/a", keys):
        assert step.message["priv"] is private
    assert "private" in refused("/a", {"priv+map": "a=1"}).detail


def test_errors_name_the_part_and_are_short() -> None:
    assert "'b)'" in refused("/a/b)/c").detail
    assert "'a=%zz'" in refused("/b?a=%zz").detail
    long = refused("/a/" + "x" * 100_000)
    assert len(long.detail) < 300
    assert "100000" in long.detail


@pytest.mark.parametrize("filler", ["x", "é", "%41"])
def test_part_length_limit(filler: str) -> None:
    unit = len(filler.encode())
    fits = filler * (MAX_PART_BYTES // unit) + "x" * (MAX_PART_BYTES % unit)
    assert len(parse(f"/a/{fits}/b")) == 4
    assert refused(f"/a/{fits}x/b").error == "part_too_long"


def test_part_length_counts_pairs_and_sub_paths() -> None:
    assert parse("/a&k=" + "x" * (MAX_PART_BYTES - 4))
    assert refused("/a&k=" + "x" * (MAX_PART_BYTES - 3)).error == "part_too_long"
    inside = "/".join(["xxxxxxx"] * 64)
    assert refused(f"/({inside})").error == "part_too_long"
    assert parse("/a?k=" + "x" * 100_000)


def test_part_count_limit() -> None:
    assert len(parse("/a" * MAX_PARTS)) == MAX_PARTS + 1
    assert len(parse("/a//" * MAX_PARTS)) == MAX_PARTS + 1
    error = refused("/a" * MAX_PARTS + "/last/more")
    assert error.error == "too_many_parts"
    assert "'last'" in error.detail


def test_part_count_includes_sub_paths() -> None:
    half = "/".join("a" * (MAX_PARTS // 2 - 1))
    assert parse(f"/({half})/b&k=({half})")
    assert refused(f"/({half})/b&k=({half}/c)").error == "too_many_parts"
    assert refused(f"/({half})/b?k+resolve={half}/c").error == "too_many_parts"


def test_depth_limit() -> None:
    def nested(depth: int) -> str:
        return "(" * depth + "a" + ")" * depth

    assert parse(f"/{nested(MAX_DEPTH)}")
    assert refused(f"/{nested(MAX_DEPTH + 1)}").error == "too_deep"
    assert parse(f"/a&k={nested(MAX_DEPTH)}")
    assert refused(f"/a&k={nested(MAX_DEPTH + 1)}").error == "too_deep"
    assert parse(f"/a?k+resolve=/{nested(MAX_DEPTH - 1)}")
    assert refused(f"/a?k+resolve=/{nested(MAX_DEPTH)}").error == "too_deep"


def test_query_pair_limit() -> None:
    assert parse("/a?" + "&".join(f"k{n}" for n in range(MAX_PAIRS)))
    refused("/a?" + "&".join(f"k{n}" for n in range(MAX_PAIRS + 1)))


@pytest.mark.parametrize(
    "path",
    [
        "/a" * 10_000,
        "/(" + "a/" * 10_000 + ")",
        "(" * 1_000 + "a" + ")" * 1_000,
        "/a&k=" + "(" * 1_000 + "a" + ")" * 1_000,
        "/a~" + "(" * 1_000 + "a" + ")" * 1_000,
        "/a?k+resolve=" + "(" * 100_000 + "a" + ")" * 100_000,
        "(" * 1_000_000,
        ")" * 1_000_000,
        "()" * 500_000,
        "/" + "&" * 1_000_000,
        "/" + "~" * 1_000_000,
        "/" + "%41" * 333_000,
        "?" + "a&" * 500_000,
        "?" + "9" * 1_000_000 + ".a=1",
        '?a+list="' + "x" * 1_000_000,
        "?a+integer=" + "9" * 1_000_000,
    ],
)
def test_huge_paths_are_refused_at_once(path: str) -> None:
    refused(path)


@pytest.mark.parametrize("path", ["/" * 1_000_000, "?" * 1_000_000, "?x=" + "y" * 1_000_000])
def test_huge_paths_that_mean_little(path: str) -> None:
    assert len(parse(path)) == 1
