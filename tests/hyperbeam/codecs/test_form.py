import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam import BadRequest
from hyperbeam.codecs.form import text_field

KIND = "multipart/form-data; boundary=B"


def form(*parts: tuple[str, str]) -> bytes:
    written = [f"--B\r\n{head}\r\n\r\n{value}\r\n" for head, value in parts]
    return ("".join(written) + "--B--\r\n").encode()


def named(name: str, more: str = "") -> str:
    return f'Content-Disposition: form-data; name="{name}"{more}'


FILE = (named("file", '; filename="a; name=model"') + "\r\nContent-Type: audio/wav", "RIFF")


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (form(FILE), ""),
        (form((named("model"), "m2"), FILE), "m2"),
        (form(FILE, ("content-disposition: form-data; name=model", " m1 ")), "m1"),
        (form((named("file"), f"x\r\n{named('model')}\r\n\r\nsmall"), (named("model"), "m")), "m"),
        (form((named("Model2"), "x")), ""),
    ],
)
def test_the_field_is_the_one_that_its_part_names(body: bytes, model: str) -> None:
    assert text_field(body, KIND, "model") == model


@pytest.mark.parametrize(
    "body",
    [
        b"",
        form((named("model"), "a"), (named("model"), "b")),
        b"preamble\r\n" + form((named("model"), "a")),
        form((named("x", '; name="model"'), "a")),
        form((named("x", "; name*=utf-8''model"), "a")),
        form((named("MODEL"), "a")),
        form((named("model", '; filename="x"'), "a")),
        form((named("model") + "\r\nContent-Transfer-Encoding: base64", "YQ==")),
        form((named("model") + "\r\n" + named("x"), "a")),
        form(("Content-Disposition : form-data; name=model", "a")),
        form(("x: y", "a")),
        form((named("model"), "a"))[:-6],
        b"--B\r\n" + named("model").encode() + b"\r\n\r\na\r\n--Bx\r\n",
        form(*[(named(str(n)), "") for n in range(1001)]),
        b"--B\r\ncontent-disposition:" + b"; name=model ;" * 100_000,
        b"--B\r\n" + b"content-disposition: ; name=model\r\n" * 100_000,
    ],
)
def test_what_readers_differ_in_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        text_field(body, KIND, "model")


@pytest.mark.parametrize("kind", ["multipart/x; boundary=B", "multipart/form-data", "text/plain"])
def test_other_types_are_no_forms(kind: str) -> None:
    with pytest.raises(BadRequest):
        text_field(form((named("model"), "a")), kind, "model")


@given(st.binary(max_size=80) | st.text('-B\r\n:;="model ', max_size=80).map(str.encode))
def test_a_body_is_read_or_refused(body: bytes) -> None:
    try:
        text_field(b"--B\r\n" + body, KIND, "model")
    except BadRequest:
        return
