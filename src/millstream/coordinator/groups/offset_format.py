"""The bytes of offset entries: read and written for every commit, so by hand rather than by a codec.

Key: type (i16, 0 or 1), group, topic, partition (i32). Value: version (i16), offset (i64), from v3 on the
leader epoch (i32), metadata, commit timestamp (i64), in v1 the expiry (i64). Strings have an i16 length.
v4 has compact lengths and tagged fields and is left to the codec (`group_entries`).
"""

from __future__ import annotations

import struct
from struct import Struct

from millstream.coordinator.entry_format import read_value
from millstream.coordinator.group_entries import OffsetCommitValue
from millstream.coordinator.groups.offsets import Committed
from millstream.coordinator.shard import Entry
from millstream.errors import ProtocolError
from millstream.model import TopicPartition

OFFSET_TYPES = (0, 1)
WRITTEN_TYPE = 1

_short = Struct(">h").unpack_from
_int = Struct(">i").unpack_from
_long = Struct(">q").unpack_from
_value_3 = Struct(">hqih").unpack_from
_pack_value_3 = Struct(">hqih").pack
_pack_value_1 = Struct(">hqh").pack
_pack_key_head = Struct(">hh").pack
_pack_short = Struct(">h").pack
_pack_int = Struct(">i").pack
_pack_long = Struct(">q").pack
_pack_longs = Struct(">qq").pack

NO_EXPIRY = -1


def read_offset_key(key: bytes) -> tuple[str, TopicPartition]:
    """The group and the partition of an entry whose key has one of OFFSET_TYPES."""
    try:
        group_end = 4 + _short(key, 2)[0]
        topic_end = group_end + 2 + _short(key, group_end)[0]
        (partition,) = _int(key, topic_end)
    except struct.error:
        raise ProtocolError("an offset's key that ends too early") from None
    if topic_end + 4 != len(key):
        raise ProtocolError("an offset's key of another length than it says")
    return key[4:group_end].decode(), TopicPartition(key[group_end + 2 : topic_end].decode(), partition)


def read_offset_value(value: bytes, log_offset: int) -> Committed:
    """What is committed; ProtocolError if it is of a version that is not known."""
    if len(value) >= 24 and value[1] == 3 and not value[0]:
        _, offset, leader_epoch, size = _value_3(value)
        end = 16 + size
        if end + 8 != len(value):
            raise ProtocolError("an offset of another length than it says")
        return Committed(
            offset, leader_epoch, value[16:end].decode(), _long(value, end)[0], NO_EXPIRY, log_offset
        )
    other = read_value(OffsetCommitValue, value)
    return Committed(
        other.offset,
        other.leader_epoch,
        other.metadata,
        other.commit_timestamp,
        other.expire_timestamp,
        log_offset,
    )


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    group, name = group_id.encode(), topic.encode()
    return b"".join(
        (
            _pack_key_head(WRITTEN_TYPE, len(group)),
            group,
            _pack_short(len(name)),
            name,
            _pack_int(partition),
        )
    )


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
    text = metadata.encode()
    if expire_ms == NO_EXPIRY:
        value = _pack_value_3(3, offset, leader_epoch, len(text)) + text + _pack_long(now_ms)
    else:
        value = _pack_value_1(1, offset, len(text)) + text + _pack_longs(now_ms, expire_ms)
    return Entry(offset_key(group_id, *partition), value)


def offset_tombstone(group_id: str, partition: TopicPartition) -> Entry:
    """What removes a commit."""
    return Entry(offset_key(group_id, *partition), None)
