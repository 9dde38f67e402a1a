"""Records as a person or a program writes them: lines, lines with keys, JSON objects, whole files."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from millstream.client.record import Headers
from millstream.errors import MillstreamError

Parse: TypeAlias = Callable[[bytes], "InputRecord"]


@dataclass(slots=True)
class InputRecord:
    """A record to be sent. Without a partition its key decides; without a time it is now."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None

    @property
    def size(self) -> int:
        """About how many bytes it takes in a batch."""
        return (
            len(self.key or b"")
            + len(self.value or b"")
            + sum(len(n) + len(v or b"") for n, v in self.headers)
            + 24
        )


class BadInput(MillstreamError):
    """A line that cannot be made a record."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How one line becomes a record.

    With `key_delimiter` the part before its first occurrence is the key. `null_if_empty` makes an
    empty value (and key) null: a tombstone. `key` and `headers` are given to every record.
    """

    key: bytes | None = None
    key_delimiter: bytes | None = None
    headers: Headers = ()
    null_if_empty: bool = False
    is_tombstone: bool = False
    partition: int | None = None

    def __call__(self, line: bytes) -> InputRecord:
        key, value = self.key, line
        if self.is_tombstone:
            if self.key is None:
                key = line
            return InputRecord(key, None, self.headers, self.partition)
        if self.key_delimiter is not None:
            key, found, value = line.partition(self.key_delimiter)
            if not found:
                delimiter = self.key_delimiter.decode(errors="replace")
                raise BadInput(f"the line {_shown(line)} has no key delimiter {delimiter!r}")
        if not self.null_if_empty:
            return InputRecord(key, value, self.headers, self.partition)
        return InputRecord(key or None, value or None, self.headers, self.partition)


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A JSON object a line, with the fields that `millstream consume -f json` prints.

    `topic` and `offset` are not taken over; `partition` only with `keep_partition`, since the target
    may have another number of partitions.
    """

    headers: Headers = ()
    partition: int | None = None
    keep_partition: bool = False
    _known: frozenset[str] = field(
        default=frozenset(
            {
                "topic",
                "partition",
                "offset",
                "timestamp",
                "key",
                "key_base64",
                "value",
                "value_base64",
                "headers",
            }
        ),
        repr=False,
    )

    def __call__(self, line: bytes) -> InputRecord:
        try:
            fields = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise BadInput(f"the line {_shown(line)} is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise BadInput(
                f'the line {_shown(line)} is not a JSON object such as {{"key": "a", "value": "b"}}'
            )
        unknown = fields.keys() - self._known
        if unknown:
            raise BadInput(f"the line {_shown(line)} has unknown fields: {', '.join(sorted(unknown))}")
        timestamp, partition = fields.get("timestamp"), self.partition
        if timestamp is not None and not isinstance(timestamp, int):
            raise BadInput(f"the line {_shown(line)} has a timestamp that is not a number of milliseconds")
        if self.keep_partition and partition is None and isinstance(fields.get("partition"), int):
            partition = fields["partition"]
        try:
            own = tuple(
                (str(header["key"]), _data(header, "value")) for header in fields.get("headers") or ()
            )
        except (TypeError, KeyError):
            raise BadInput(
                f'the line {_shown(line)} has headers that are not a list of {{"key": …, "value": …}}'
            ) from None
        return InputRecord(
            _data(fields, "key"), _data(fields, "value"), own + self.headers, partition, timestamp
        )


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
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that `chunk` completes, without their delimiters."""
        *lines, self._rest = (self._rest + chunk).split(self._delimiter)
        yield from lines

    def finish(self) -> Iterator[bytes]:
        """The last line, where the stream did not end with a delimiter."""
        rest, self._rest = self._rest, b""
        if rest:
            yield rest
