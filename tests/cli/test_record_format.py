"""How records are printed, byte by byte."""

from __future__ import annotations

import base64
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.escapes import unescape
from millstream.cli.record_format import compile_format, format_named
from millstream.cli.record_input import JsonFormat
from millstream.client.record import ReadBatch
from millstream.model import TopicPartition
from millstream.protocol.batch import encode_batch, read_header
from millstream.protocol.consumer_kernel import Record
from millstream.protocol.record import Record as Sent

RECORD = Record("orders", 5, 42, 1_780_000_000_123, b"k1", b"v\xff", (("a", b"1"), ("b", None)))


def batch_of(record: Record) -> ReadBatch:
    sent = Sent(key=record.key, value=record.value, headers=record.headers, timestamp=record.timestamp_ms)
    encoded = encode_batch([sent], base_offset=record.offset, leader_epoch=3, producer_id=9, producer_epoch=1)
    return ReadBatch(TopicPartition("orders", 5), read_header(encoded), [record])


def shown(text: str, record: Record = RECORD, number: int = 1) -> bytes:
    return compile_format(text)(batch_of(record), record, number)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%k %v\\n", b"k1 v\xff\n"),
        ("%K %V %T %H", b"2 2 6 2"),
        ("%t/%p@%o #%i", b"orders/5@42 #1"),
        ("%e %x %y %a", b"3 9 1 none"),
        ("%d", b"1780000000123"),
        ("%d{%Y-%m-%dT%H:%M:%S}", b"2026-05-28T20:26:40"),
        ("%h{%k=%v;}", b"a=1;b=;"),
        ("%h{[%k{hex}]}", b"[61][62]"),
        ("%v{hex} %v{base64} %k{json}", b'76ff dv8= "k1"'),
        ("%V{big32}%o{little64}%p{big8}", struct.pack(">I", 2) + struct.pack("<Q", 42) + b"\x05"),
        ("100%%\\t\\x41\\u00e9\\\\", "100%\tA\u00e9\\".encode()),
        ("no signs", b"no signs"),
    ],
)
def test_percent_signs(text: str, expected: bytes) -> None:
    assert shown(text) == expected


@pytest.mark.parametrize(
    "text", ["%", "%Q", "%v{octal}", "%o{base64}", "%o{big24}", "%h{%k", "\\q%v", "%v\\"]
)
def test_signs_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"%|\{|escape|backslash"):
        compile_format(text)


def test_null_prints_nothing() -> None:
    assert shown("[%k][%v]%K%V", Record("orders", 5, 0, 0, None, None)) == b"[][]00"


def test_a_name_without_signs_must_be_known() -> None:
    with pytest.raises(ValueError, match="is no format"):
        format_named("yaml")


def test_the_text_format_shows_no_control_characters() -> None:
    record = Record("orders", 5, 7, 0, b"\x1b[31m", b"a\nb\xff")
    line = format_named("text")(batch_of(record), record, 1)
    assert line == b"5:7 1970-01-01T00:00:00.000Z \\x1b[31m = a\\nb\\xff\n"


def test_json_keeps_bytes_that_are_no_text() -> None:
    fields = json.loads(format_named("json")(batch_of(RECORD), RECORD, 1))
    assert fields == {
        "topic": "orders",
        "partition": 5,
        "offset": 42,
        "timestamp": 1_780_000_000_123,
        "key": "k1",
        "value_base64": base64.b64encode(b"v\xff").decode(),
        "headers": [{"key": "a", "value": "1"}, {"key": "b", "value": None}],
    }


@given(
    key=st.none() | st.binary(),
    value=st.none() | st.binary(),
    headers=st.lists(st.tuples(st.text(), st.none() | st.binary())),
    timestamp=st.integers(0, 2**53),
)
def test_what_consume_prints_as_json_produce_reads_back(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp: int
) -> None:
    record = Record("orders", 5, 3, timestamp, key, value, tuple(headers))
    line = format_named("json")(batch_of(record), record, 1)
    assert line.count(b"\n") == 1
    read, partition = JsonFormat(keep_partition=True)(line.rstrip(b"\n"), 0)
    assert (read.key, read.value, read.headers, read.timestamp) == (key, value, tuple(headers), timestamp)
    assert partition == 5


def test_escapes() -> None:
    assert unescape("a\\tb\\x00\\0\\r\\n\\\\") == b"a\tb\0\0\r\n\\"
    assert unescape("\u00e9") == "\u00e9".encode()
