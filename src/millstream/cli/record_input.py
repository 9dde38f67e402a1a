"""Records as a person or a program writes them: lines, lines with keys, JSON objects, whole files."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from millstream.errors import MillstreamError
from millstream.protocol.record import Header, Record

Headers: TypeAlias = tuple[Header, ...]
Parse: TypeAlias = Callable[[bytes, int], tuple[Record, int | None]]
"""A line and the present time in ms to a record and the partition it asks for, if it does."""

JSON_FIELDS = frozenset(
    {"topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers"}
)


class BadInput(MillstreamError):
    """A line that cannot be made a record."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How one line becomes a record.

    With `key_delimiter` the part before its first occurrence is the key. `null_if_empty` makes an
    empty value (and key) null. With `is_tombstone` the value is null, and the line is the key where
    none is given. `key` and `headers` are given to every record.
    """

    key: bytes | None = None
    key_delimiter: bytes | None = None
    headers: Headers = ()
    null_if_empty: bool = False
    is_tombstone: bool = False
    partition: int | None = None

    def __call__(self, line: bytes, now_ms: int) -> tuple[Record, int | None]:
        key: bytes | None = self.key
        value: bytes | None = line
        if self.is_tombstone:
            key, value = line if self.key is None else self.key, None
        elif self.key_delimiter is not None:
            key, found, value = line.partition(self.key_delimiter)
            if not found:
                delimiter = self.key_delimiter.decode(errors="replace")
                raise BadInput(f"the line {_shown(line)} has no key delimiter {delimiter!r}")
        if self.null_if_empty:
            key, value = key or None, value or None
        return Record(key=key, value=value, headers=self.headers, timestamp=now_ms), self.partition


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A JSON object a line, with the fields that `millstream consume -f json` prints.

    `topic` and `offset` are not taken over; `partition` only with `keep_partition`, since the target
    may have another number of partitions. Values that are no strings are sent as the JSON they are.
    """

    headers: Headers = ()
    partition: int | None = None
    keep_partition: bool = False

    def __call__(self, line: bytes, now_ms: int) -> tuple[Record, int | None]:
        try:
            fields = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise BadInput(f"the line {_shown(line)} is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise BadInput(f'the line {_shown(line)} is no JSON object such as {{"key": "a", "value": "b"}}')
        unknown = fields.keys() - JSON_FIELDS
        if unknown:
            raise BadInput(f"the line {_shown(line)} has unknown fields: {', '.join(sorted(unknown))}")
        timestamp = fields.get("timestamp", now_ms)
        if not isinstance(timestamp, int) or not -1 <= timestamp < 2**63:
            raise BadInput(f"the line {_shown(line)} has a timestamp that is no number of milliseconds")
        partition = self.partition
        if self.keep_partition and partition is None and isinstance(fields.get("partition"), int):
            partition = fields["partition"]
        record = Record(
            key=_data(fields, "key"),
            value=_data(fields, "value"),
            headers=_headers(fields, line) + self.headers,
            timestamp=timestamp,
        )
        return record, partition


def _headers(fields: dict[str, Any], line: bytes) -> Headers:
    try:
        return tuple((str(header["key"]), _data(header, "value")) for header in fields.get("headers") or ())
    except (TypeError, KeyError, AttributeError):
        expected = '[{"key": "a", "value": "b"}]'
        raise BadInput(f"the line {_shown(line)} has headers that are not like {expected}") from None


def _data(fields: dict[str, Any], name: str) -> bytes | None:
    """A field's bytes: a string as UTF-8, base64 undone, any other JSON as it is written."""
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (ValueError, TypeError):
            raise BadInput(f"{name}_base64 holds {encoded!r}, which is not base64") from None
    value = fields.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:57] + "...")


class LineSplitter:
    """Cuts a stream of chunks into lines, keeping the unfinished one."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._rest: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their delimiters."""
        start = chunk
        if self._rest:
            # A delimiter of several bytes may lie across two chunks.
            if len(self._delimiter) == 1 and self._delimiter not in chunk:
                self._rest.append(chunk)
                return []
            start = b"".join([*self._rest, chunk])
        *lines, rest = start.split(self._delimiter)
        self._rest = [rest] if rest else []
        return lines

    def finish(self) -> Iterator[bytes]:
        """The last line, where the stream did not end with a delimiter."""
        rest, self._rest = b"".join(self._rest), []
        if rest:
            yield rest
