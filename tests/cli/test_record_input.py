"""Lines and JSON objects as records, and streams of chunks as lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.record_input import BadInput, JsonFormat, LineFormat, LineSplitter

NOW_MS = 1_780_000_000_000


def test_a_line_is_a_value() -> None:
    record, partition = LineFormat()(b"hello", NOW_MS)
    assert (record.key, record.value, record.headers, record.timestamp) == (None, b"hello", (), NOW_MS)
    assert partition is None


def test_key_headers_and_partition_are_given_to_every_record() -> None:
    record, partition = LineFormat(key=b"k", headers=(("h", b"1"),), partition=3)(b"v", NOW_MS)
    assert (record.key, record.value, record.headers, partition) == (b"k", b"v", (("h", b"1"),), 3)


def test_the_first_delimiter_parts_key_and_value() -> None:
    record, _ = LineFormat(key_delimiter=b":")(b"a:b:c", NOW_MS)
    assert (record.key, record.value) == (b"a", b"b:c")


def test_a_line_without_its_delimiter_is_refused() -> None:
    with pytest.raises(BadInput, match="no key delimiter ':'"):
        LineFormat(key_delimiter=b":")(b"abc", NOW_MS)


def test_empty_is_null_only_when_asked_for() -> None:
    plain, _ = LineFormat(key_delimiter=b":")(b"a:", NOW_MS)
    nulled, _ = LineFormat(key_delimiter=b":", null_if_empty=True)(b"a:", NOW_MS)
    assert (plain.value, nulled.value, nulled.key) == (b"", None, b"a")


def test_tombstones_take_the_line_as_key() -> None:
    record, _ = LineFormat(is_tombstone=True)(b"user-7", NOW_MS)
    assert (record.key, record.value) == (b"user-7", None)


def test_json_values_that_are_no_strings_are_sent_as_json() -> None:
    record, _ = JsonFormat()(b'{"key": 7, "value": {"a": [1, 2]}}', NOW_MS)
    assert (record.key, record.value, record.timestamp) == (b"7", b'{"a":[1,2]}', NOW_MS)


def test_json_partition_is_kept_only_when_asked_for() -> None:
    line = b'{"value": "v", "partition": 2, "offset": 9, "topic": "t"}'
    assert JsonFormat()(line, NOW_MS)[1] is None
    assert JsonFormat(keep_partition=True)(line, NOW_MS)[1] == 2
    assert JsonFormat(keep_partition=True, partition=1)(line, NOW_MS)[1] == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"hello", "is not JSON"),
        (b"[1]", "is no JSON object"),
        (b'{"valeu": "v"}', "unknown fields: valeu"),
        (b'{"value_base64": "!"}', "is not base64"),
        (b'{"value": "v", "timestamp": "now"}', "timestamp"),
        (b'{"value": "v", "headers": {"a": "b"}}', "headers"),
        (b'{"value": "v", "headers": [["a", "b"]]}', "headers"),
    ],
)
def test_bad_json_is_refused_with_the_reason(line: bytes, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        JsonFormat()(line, NOW_MS)


@given(st.binary(), st.lists(st.integers(1, 7)), st.sampled_from([b"\n", b"\0", b"ab", b"\r\n"]))
def test_lines_do_not_depend_on_how_the_stream_is_cut(data: bytes, cuts: list[int], delimiter: bytes) -> None:
    splitter, lines, rest = LineSplitter(delimiter), [], data
    for cut in cuts:
        lines += splitter.feed(rest[:cut]) if rest else []
        rest = rest[cut:]
    if rest:
        lines += splitter.feed(rest)
    lines += splitter.finish()
    expected = data.split(delimiter)
    if not expected[-1]:
        expected.pop()
    assert lines == expected
