"""The host's certificate table: what it holds, and tables made to mislead."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.snp.table import KINDS, MAX_SIZE, parse

GUIDS = {kind: guid for guid, kind in KINDS.items()}
OTHER = uuid.UUID("92f81bc3-5811-4d3d-97ff-d19f88dc67ea").bytes


def table(entries: list[tuple[bytes, bytes]]) -> bytes:
    at = 24 * (len(entries) + 1)
    head, body = b"", b""
    for guid, content in entries:
        head += guid + (at + len(body)).to_bytes(4, "little") + len(content).to_bytes(4, "little")
        body += content
    return head + bytes(24) + body


def test_certificates_by_kind() -> None:
    entries = [(guid, kind.encode()) for kind, guid in GUIDS.items()]
    assert parse(table(entries)) == {kind: kind.encode() for kind in GUIDS}
    assert parse(table([*entries, (OTHER, b"a revocation list")]) + bytes(4096)) == {
        kind: kind.encode() for kind in GUIDS
    }


@pytest.mark.parametrize("data", [b"", bytes(24), bytes(16384)])
def test_a_host_may_have_none(data: bytes) -> None:
    assert parse(data) == {}


def test_guids_are_in_the_order_of_their_text() -> None:
    assert GUIDS["vcek"].hex() == "63da758de6644564adc5f4b93be8accd"


@pytest.mark.parametrize(
    "data",
    [
        b"\1" * 23,
        table([(GUIDS["vcek"], b"x")])[:40],
        table([(GUIDS["vcek"], b"x" * 10)])[:-1],
        table([(GUIDS["vcek"], b"x"), (GUIDS["vcek"], b"y")]),
        GUIDS["vcek"] + b"\xff" * 8 + bytes(24),
        table([(OTHER, b"x")] * 100),
        bytes([1]) + bytes(MAX_SIZE),
    ],
)
def test_misleading_tables_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        parse(data)
    assert caught.value.reason == "table-malformed"


@given(
    st.one_of(
        st.binary(max_size=300),
        st.lists(st.tuples(st.sampled_from([*KINDS, OTHER]), st.binary(max_size=40))).map(table),
    ),
    st.integers(0, 400),
)
def test_any_bytes_are_a_table_or_refused(data: bytes, cut: int) -> None:
    try:
        found = parse(data[:cut])
    except Malformed as error:
        assert error.reason == "table-malformed"
    else:
        assert all(kind in GUIDS and content in data for kind, content in found.items())
