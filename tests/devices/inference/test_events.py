from hypothesis import given
from hypothesis import strategies as st

from devices.inference.events import EventParser


def parse(*chunks: bytes) -> list[bytes]:
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def test_events_end_at_blank_lines_of_any_kind() -> None:
    assert parse(b"data: 1\n\ndata:2\r\n\r\ndata: 3\r\r") == [b"1", b"2", b"3"]


def test_comments_other_fields_and_empty_events_are_dropped() -> None:
    assert parse(b": hi\n\nevent: x\nid: 1\ndata: 1\n\n\n\nretry: 5\n\n") == [b"1"]


def test_several_data_lines_are_one_event() -> None:
    assert parse(b"data: a\ndata\ndata:  b\n\n") == [b"a\n\n b"]


def test_what_no_blank_line_ends_is_dropped() -> None:
    assert parse(b"data: 1\n\ndata: 2\n") == [b"1"]


_LINES = st.lists(
    st.sampled_from([b"data: x", b"data:y", b"data", b": c", b"event: e", b"", b"", b"id"])
)


@given(_LINES, st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=1), st.data())
def test_where_the_stream_is_cut_does_not_matter(
    lines: list[bytes], ends: list[bytes], data: st.DataObject
) -> None:
    # A line feed after a lone CR would be one end of line, so kinds of ends are not mixed.
    end = ends[0]
    stream = b"".join(line + end for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parse(*chunks) == parse(stream.replace(end, b"\n"))
