"""How entries of the internal topics are written, which is how Apache Kafka writes them.

A key is a 16-bit type, then its fields; a value is a 16-bit version, then its fields. Types and
versions that are not known here are passed over when a log is replayed, so that a newer broker's
entries do no harm.
"""

from __future__ import annotations

from struct import Struct as Format
from typing import ClassVar, TypeVar

from millstream.coordinator.shard import Entry
from millstream.errors import ProtocolError
from millstream.protocol.schema import Message

_NUMBER = Format(">h")

MAX_TEXT_BYTES = 32767
"""The longest text that keys, and values that are not flexible, can hold."""

ValueT = TypeVar("ValueT", bound="EntryValue")


class EntryKey(Message):
    """The key of an entry. `types` are the numbers under which it is known; the last is written."""

    __slots__ = ()

    types: ClassVar[tuple[int, ...]]

    def __init_subclass__(cls, *, types: tuple[int, ...]) -> None:
        super().__init_subclass__(versions=(0, 0), flexible=None)
        cls.types = types

    def to_bytes(self) -> bytes:
        return _NUMBER.pack(self.types[-1]) + self.encode(0)


class EntryValue(Message):
    """The value of an entry. `written` is the version that we write; all declared ones are read."""

    __slots__ = ()

    written: ClassVar[int]

    def __init_subclass__(cls, *, versions: tuple[int, int], flexible: int | None, written: int) -> None:
        super().__init_subclass__(versions=versions, flexible=flexible)
        cls.written = written

    def to_bytes(self) -> bytes:
        return _NUMBER.pack(self.written) + self.encode(self.written)


def entry(key: EntryKey, value: EntryValue | None) -> Entry:
    """An entry that sets a key, or deletes it where the value is None."""
    return Entry(key.to_bytes(), None if value is None else value.to_bytes())


def fits(text: str) -> bool:
    """Whether a text can stand in an entry."""
    return len(text) <= MAX_TEXT_BYTES // 4 or len(text.encode()) <= MAX_TEXT_BYTES


def number_of(data: bytes) -> int:
    """The type of a key or the version of a value."""
    if len(data) < 2:
        raise ProtocolError("an entry of an internal topic without its type")
    number: int = _NUMBER.unpack_from(data)[0]
    return number


def read_value(kind: type[ValueT], data: bytes) -> ValueT:
    """The value in an entry; ProtocolError if it is not of a version known here."""
    return kind.decode(data, number_of(data), 2)
