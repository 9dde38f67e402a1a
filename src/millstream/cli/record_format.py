r"""How records are printed: named formats, and a small language of percent signs.

| sign | prints                              | sign | prints                                     |
|------|-------------------------------------|------|--------------------------------------------|
| `%k` | key                                 | `%K` | length of the key in bytes                 |
| `%v` | value                               | `%V` | length of the value in bytes               |
| `%h{%k=%v }` | for each header the format in braces | `%H` | number of headers               |
| `%t` | topic                               | `%p` | partition                                  |
| `%o` | offset                              | `%e` | leader epoch                               |
| `%d` | timestamp in milliseconds           | `%d{%Y-%m-%d}` | timestamp by strftime, in UTC    |
| `%a` | compression of the batch            | `%i` | number of the record printed, from 1       |
| `%x` | producer id                         | `%y` | producer epoch                             |
| `%%` | a percent sign                      | `\n` | a new line; also `\t`, `\0`, `\xHH`, `\\`  |

Texts take a modifier: `%v{hex}`, `%v{base64}`, `%v{json}` (a JSON string). Numbers too: `%V{big32}`
and `%o{little64}` write the number itself in 8, 16, 32 or 64 bits. A null key or value prints nothing.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from millstream.cli.escapes import unescape
from millstream.cli.offset_range import EPOCH
from millstream.client.record import ReadBatch
from millstream.protocol.batch import Codec
from millstream.protocol.consumer_kernel import Record

Format: TypeAlias = Callable[[ReadBatch, Record, int], bytes]
"""A record, the batch it came in and its number (from 1) as bytes, with the line's end."""

_NUMBER_WIDTHS = {"8": "B", "16": "H", "32": "I", "64": "Q"}


def format_named(text: str) -> Format:
    """The format called `text` (json, value, text), or the one that `text` spells in percent signs."""
    if text in _NAMED:
        return _NAMED[text]
    if "%" not in text:
        raise ValueError(
            f"{text!r} is no format: write json, value, text, or percent signs such as '%o %k %v\\n'"
        )
    return compile_format(text)


def record_fields(batch: ReadBatch, record: Record) -> dict[str, Any]:
    """A record as JSON has it.

    Keys, values and headers that are UTF-8 stand as strings; others stand in base64 under the name
    with `_base64` at its end instead, so that nothing is lost.
    """
    fields: dict[str, Any] = {
        "topic": batch.partition.topic,
        "partition": batch.partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }
    put_bytes(fields, "key", record.key)
    put_bytes(fields, "value", record.value)
    if record.headers:
        headers = []
        for name, value in record.headers:
            header: dict[str, Any] = {"key": name}
            put_bytes(header, "value", value)
            headers.append(header)
        fields["headers"] = headers
    return fields


def put_bytes(fields: dict[str, Any], name: str, data: bytes | None) -> None:
    """Put bytes into JSON: as text where they are UTF-8, else in base64 under another name."""
    if data is None:
        fields[name] = None
        return
    try:
        fields[name] = data.decode()
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = base64.b64encode(data).decode()


def format_json(batch: ReadBatch, record: Record, _: int) -> bytes:
    return msgspec.json.encode(record_fields(batch, record)) + b"\n"


def format_value(_: ReadBatch, record: Record, __: int) -> bytes:
    return (record.value or b"") + b"\n"


def format_text(batch: ReadBatch, record: Record, _: int) -> bytes:
    """One line for a person's eyes: partition and offset, time, key, value, headers."""
    place = f"{batch.partition.partition}:{record.offset} {_iso_time(record.timestamp_ms)}"
    key = "" if record.key is None else f" {readable(record.key)} ="
    value = "(null)" if record.value is None else readable(record.value)
    headers = " ".join(f"{name}={readable(data or b'')}" for name, data in record.headers)
    return f"{place}{key} {value}{f'  [{headers}]' if headers else ''}\n".encode()


_NAMED: dict[str, Format] = {"json": format_json, "value": format_value, "text": format_text}


def _iso_time(timestamp_ms: int) -> str:
    moment = _moment(timestamp_ms)
    return str(timestamp_ms) if moment is None else f"{moment.strftime('%Y-%m-%dT%H:%M:%S.%f')[:-3]}Z"


def _moment(timestamp_ms: int) -> datetime | None:
    """None where the calendar ends before the timestamp does."""
    try:
        return EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


def readable(data: bytes) -> str:
    """Text as it is, without control characters that would move a terminal's cursor."""
    text = data.decode(errors="backslashreplace")
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


# -------------------------------------------------------------------- the language of percent signs

_NUMBERS: dict[str, Callable[[ReadBatch, Record, int], int]] = {
    "K": lambda _, record, __: len(record.key or b""),
    "V": lambda _, record, __: len(record.value or b""),
    "T": lambda batch, _, __: len(batch.partition.topic),
    "H": lambda _, record, __: len(record.headers),
    "p": lambda batch, _, __: batch.partition.partition,
    "o": lambda _, record, __: record.offset,
    "e": lambda batch, _, __: batch.header.leader_epoch,
    "i": lambda _, __, number: number,
    "x": lambda batch, _, __: batch.header.producer_id,
    "y": lambda batch, _, __: batch.header.producer_epoch,
}
_TEXTS: dict[str, Callable[[ReadBatch, Record], bytes]] = {
    "k": lambda _, record: record.key or b"",
    "v": lambda _, record: record.value or b"",
    "t": lambda batch, _: batch.partition.topic.encode(),
    "a": lambda batch, _: Codec(batch.header.codec).name.lower().encode(),
}


def compile_format(text: str) -> Format:
    """The format that `text` spells; ValueError says which part is not understood."""
    parts = [
        _literal(piece) if sign is None else _part(sign, modifier) for piece, sign, modifier in _split(text)
    ]
    return lambda batch, record, number: b"".join([part(batch, record, number) for part in parts])


def _split(text: str) -> list[tuple[str, str | None, str | None]]:
    """Cut into (literal, None, None) and ("", sign, modifier) pieces; modifiers nest braces."""
    pieces: list[tuple[str, str | None, str | None]] = []
    position = 0
    while position < len(text):
        at = text.find("%", position)
        if at < 0:
            pieces.append((text[position:], None, None))
            break
        if at > position:
            pieces.append((text[position:at], None, None))
        if at + 1 == len(text):
            raise ValueError(f"{text!r} ends with a single %: write %% for a percent sign")
        sign, position = text[at + 1], at + 2
        modifier = None
        if position < len(text) and text[position] == "{" and sign != "%":
            end = _closing_brace(text, position)
            modifier, position = text[position + 1 : end], end + 1
        pieces.append(("", sign, modifier))
    return pieces


def _closing_brace(text: str, opening: int) -> int:
    depth = 0
    for position in range(opening, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return position
    raise ValueError(f"{text!r} has a {{ that is not closed")


def _literal(text: str) -> Format:
    data = unescape(text)
    return lambda _, __, ___: data


def _part(sign: str, modifier: str | None) -> Format:
    if sign == "%":
        return lambda _, __, ___: b"%"
    if sign == "h":
        return _headers("%k=%v " if modifier is None else modifier)
    if sign == "d":
        return _timestamp(modifier)
    if sign in _NUMBERS:
        number_of, write_number = _NUMBERS[sign], _number_writer(modifier)
        return lambda batch, record, number: write_number(number_of(batch, record, number))
    if sign in _TEXTS:
        text_of, write_text = _TEXTS[sign], _text_writer(modifier)
        return lambda batch, record, _: write_text(text_of(batch, record))
    raise ValueError(f"%{sign} is not known: see `millstream consume --help` for those that are")


def _headers(text: str) -> Format:
    inner = compile_format(text)

    def write(batch: ReadBatch, record: Record, number: int) -> bytes:
        return b"".join(
            inner(
                batch,
                Record(record.topic, record.partition, record.offset, 0, name.encode(), value),
                number,
            )
            for name, value in record.headers
        )

    return write


def _timestamp(modifier: str | None) -> Format:
    if modifier is None or re.fullmatch(r"(big|little)\d+|hex|ascii", modifier):
        write_number = _number_writer(modifier)
        return lambda _, record, __: write_number(record.timestamp_ms)

    def write(_: ReadBatch, record: Record, __: int) -> bytes:
        moment = _moment(record.timestamp_ms)
        return b"%d" % record.timestamp_ms if moment is None else moment.strftime(modifier).encode()

    return write


def _number_writer(modifier: str | None) -> Callable[[int], bytes]:
    if modifier in (None, "", "ascii"):
        return lambda number: b"%d" % number
    if modifier == "hex":
        return lambda number: b"%x" % number
    match = re.fullmatch(r"(big|little)(8|16|32|64)", modifier or "")
    if match is None:
        raise ValueError(f"{{{modifier}}} is no way to write a number: use hex, big32, little64 and so on")
    packer = struct.Struct((">" if match[1] == "big" else "<") + _NUMBER_WIDTHS[match[2]])
    mask = (1 << int(match[2])) - 1
    return lambda number: packer.pack(number & mask)


def _text_writer(modifier: str | None) -> Callable[[bytes], bytes]:
    if modifier in (None, "", "raw"):
        return lambda data: data
    if modifier == "hex":
        return lambda data: data.hex().encode()
    if modifier == "base64":
        return base64.b64encode
    if modifier == "json":
        return lambda data: msgspec.json.encode(data.decode(errors="replace"))
    raise ValueError(f"{{{modifier}}} is no way to write a text: use hex, base64 or json")
