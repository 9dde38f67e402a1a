"""The bytes of offset entries: read and written for every commit, so by hand rather than by a codec.

Key: type (i16, 0 or 1), group, topic, partition (i32). Value: version (i16), offset (i64), from v3 on the
leader epoch (i32), metadata, commit timestamp (i64), in v1 the expiry (i64). Strings have an i16 length.
v4 has compact lengths and tagged fields and is left to the codec (`group_entries`).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from millstream.coordinator.entry_format import read_value
from millstream.coordinator.group_entries import OffsetCommitValue
from millstream.coordinator.shard import Entry
from millstream.errors import ProtocolError
from millstream.model import TopicPartition

OFFSET_HEADS = frozenset({b"\x00\x00", b"\x00\x01"})
"""How keys of offsets begin."""

_long = Struct(">q").unpack_from
_int = Struct(">i").unpack_from
_value_3 = Struct(">hqih").unpack_from
_pack_value_3 = Struct(">hqih").pack
_pack_bare_value_3 = Struct(">hqihq").pack
_pack_value_1 = Struct(">hqh").pack
_pack_key_head = Struct(">hh").pack
_pack_short = Struct(">h").pack
_pack_int = Struct(">i").pack
_pack_long = Struct(">q").pack
_pack_longs = Struct(">qq").pack

NO_EXPIRY = -1

KEPT = 8192
"""How many of the last keys are kept: who commits does so again and again."""
MAX_KEPT = 512
"""The longest group id, and the longest key, that is kept."""

KNOWN_VERSIONS = OffsetCommitValue.versions[1]
LEAST_VALUE_BYTES = 2 + 8


class Committed(NamedTuple):
    """A group's position in one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY


def split_key(key: bytes) -> tuple[bytes, bytes]:
    """The group and the place (see `place_of`) in a key that begins with one of OFFSET_HEADS."""
    try:
        group_end = 4 + (key[2] << 8 | key[3])
        if group_end + 6 + (key[group_end] << 8 | key[group_end + 1]) == len(key):
            return key[4:group_end], key[group_end:]
    except IndexError:
        pass
    raise ProtocolError("an offset's key of another length than it says")


def split_kept(key: bytes) -> tuple[bytes, bytes]:
    """As `split_key`, for keys that come again and again."""
    return _kept_parts(key) if len(key) <= MAX_KEPT else split_key(key)


def check_value(value: bytes) -> None:
    """Raise ProtocolError unless the value is of a version that can be read."""
    if len(value) < LEAST_VALUE_BYTES or value[0] or value[1] > KNOWN_VERSIONS:
        raise ProtocolError("an offset of an unknown version")


def place_of(topic: str, partition: int) -> bytes:
    """A partition as it stands in a key: the length of the topic's name, the name, the number."""
    name = topic.encode()
    return _pack_short(len(name)) + name + _pack_int(partition)


def head_of(topic: str) -> bytes:
    """How the places of a topic begin: all but the number."""
    return place_of(topic, 0)[:-4]


def partition_at(place: bytes) -> TopicPartition:
    """The partition that `place_of` wrote."""
    (partition,) = _int(place, len(place) - 4)
    return TopicPartition(place[2:-4].decode("utf-8", "replace"), partition)


def read_offset(value: bytes) -> Committed:
    """What is committed; ProtocolError if that cannot be read."""
    if value[1] == 3 and len(value) >= 24:
        _, offset, leader_epoch, size = _value_3(value)
        end = 16 + size
        if end + 8 != len(value):
            raise ProtocolError("an offset of another length than it says")
        metadata = value[16:end].decode("utf-8", "replace") if size else ""
        return Committed(offset, leader_epoch, metadata, _long(value, end)[0])
    other = read_value(OffsetCommitValue, value)
    return Committed(
        other.offset, other.leader_epoch, other.metadata, other.commit_timestamp, other.expire_timestamp
    )


def may_be_older(value: bytes, limit_ms: int) -> bool:
    """Whether a value may have been committed until a moment, or has an expiry of its own."""
    return value[1] != 3 or len(value) < 24 or _long(value, len(value) - 8)[0] <= limit_ms


def offset_entry(
    group_id: str,
    partition: TopicPartition,
    offset: int,
    leader_epoch: int,
    metadata: str,
    now_ms: int,
    expire_ms: int = NO_EXPIRY,
) -> Entry:
    """A commit. One with an expiry of its own is written in version 1, as Kafka does."""
    if not metadata and expire_ms == NO_EXPIRY:
        value = _pack_bare_value_3(3, offset, leader_epoch, 0, now_ms)
    else:
        text = metadata.encode()
        if expire_ms == NO_EXPIRY:
            value = _pack_value_3(3, offset, leader_epoch, len(text)) + text + _pack_long(now_ms)
        else:
            value = _pack_value_1(1, offset, len(text)) + text + _pack_longs(now_ms, expire_ms)
    key = _kept_key if len(group_id) <= MAX_KEPT else _key
    return Entry(key(group_id, partition), value)


def offset_tombstone(group_id: str, partition: TopicPartition) -> Entry:
    """What removes a commit."""
    return Entry(_key(group_id, partition), None)


def _key(group_id: str, partition: TopicPartition) -> bytes:
    group = group_id.encode()
    return _pack_key_head(1, len(group)) + group + place_of(*partition)


_kept_key = lru_cache(KEPT)(_key)
_kept_parts = lru_cache(KEPT)(split_key)
