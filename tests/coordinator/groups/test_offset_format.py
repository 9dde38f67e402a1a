"""The bytes of offset entries: those of the codec, and whatever else may be in a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordinator.entry_format import entry, number_of
from millstream.coordinator.group_entries import OffsetCommitKey, OffsetCommitValue
from millstream.coordinator.groups.commits import Caller, Commit
from millstream.coordinator.groups.offset_format import (
    Committed,
    check_value,
    offset_entry,
    offset_tombstone,
    partition_at,
    place_of,
    read_offset,
    split_key,
)
from millstream.coordinator.shard import Entry
from millstream.errors import ProtocolError
from millstream.model import TopicPartition
from tests.coordinator.groups.host import Host

texts = st.text(max_size=20)
numbers = st.integers(0, 2**62)


@given(texts, texts, st.integers(0, 2**31 - 1), numbers, st.integers(-1, 2**31 - 1), texts, numbers)
def test_entries_are_those_of_the_codec(
    group: str, topic: str, partition: int, at: int, epoch: int, note: str, now_ms: int
) -> None:
    made = offset_entry(group, TopicPartition(topic, partition), at, epoch, note, now_ms)
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    value = OffsetCommitValue(offset=at, leader_epoch=epoch, metadata=note, commit_timestamp=now_ms)
    assert made == entry(key, value)
    assert offset_tombstone(group, TopicPartition(topic, partition)) == entry(key, None)
    assert number_of(made.key) == 1
    assert split_key(made.key) == (group.encode(), place_of(topic, partition))
    assert partition_at(place_of(topic, partition)) == (topic, partition)
    assert made.value is not None
    check_value(made.value)
    assert read_offset(made.value) == Committed(at, epoch, note, now_ms)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_values_of_all_versions_are_read(version: int) -> None:
    value = version.to_bytes(2, "big") + OffsetCommitValue(
        offset=1, leader_epoch=2, metadata="m", commit_timestamp=3, expire_timestamp=4
    ).encode(version)
    check_value(value)
    found = read_offset(value)
    assert (found.offset, found.metadata, found.commit_timestamp_ms) == (1, "m", 3)
    assert found.leader_epoch == (2 if version >= 3 else -1)
    assert found.expire_timestamp_ms == (4 if version == 1 else -1)


@given(st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_strange_entries_do_no_harm(key: bytes, value: bytes | None) -> None:
    host = Host()
    host.apply(host.shard.commits.commit("g", Caller(), [Commit(TopicPartition("t", 0), 5, 0, "")]))
    for prefix in (b"", b"\x00\x00", b"\x00\x01", b"\x00\x02", b"\x00\x09", b"\x00\x01\x00\x01g\x00\x01t"):
        host.shard.replay(Entry(prefix + key, value), None, 0)
    for group in list(host.shard):
        assert len(list(host.shard.offsets.of(group.group_id))) <= host.shard.offsets.count(group.group_id)


@given(st.binary(max_size=60))
def test_cut_values_are_refused(data: bytes) -> None:
    try:
        check_value(data)
        read_offset(data)
    except (ProtocolError, UnicodeDecodeError):
        pass
