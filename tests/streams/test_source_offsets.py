"""Offsets as JSON, slices of them, and how a limit is shared out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.model import TopicPartition
from millstream.streams.offsets import START, from_json, start_of, to_json
from millstream.streams.reading.admission import available, limited
from millstream.streams.reading.slices import Slice, slices

PARTITIONS = st.sampled_from([TopicPartition(topic, index) for topic in "ab" for index in range(12)])
quick = settings(max_examples=50, deadline=None)
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 1000), max_size=8)


def test_topics_and_partitions_are_in_order() -> None:
    offsets = {TopicPartition("b", 0): 1, TopicPartition("a", 10): 2, TopicPartition("a", 9): 3}
    assert json.dumps(to_json(offsets)) == '{"a": {"9": 3, "10": 2}, "b": {"0": 1}}'


@quick
@given(OFFSETS)
def test_offsets_come_back(offsets: dict[TopicPartition, int]) -> None:
    assert from_json(json.dumps(to_json(offsets))) == offsets


def test_where_a_stream_began_is_no_topic() -> None:
    document = {"a": {"0": 5}, START: {"a": {"0": 2}}}
    assert from_json(document) == {TopicPartition("a", 0): 5}
    assert start_of(document) == {TopicPartition("a", 0): 2}
    assert start_of({"a": {"0": 5}}) is None


@pytest.mark.parametrize("document", ["[]", '{"a": 3}', '{"a": {"x": 3}}', '{"a": {"0": true}}', "nonsense"])
def test_other_documents_are_refused(document: str) -> None:
    with pytest.raises(ValueError):
        from_json(document)


@quick
@given(OFFSETS, OFFSETS, st.integers(0, 20), st.none() | st.integers(1, 300))
def test_slices_cover_everything_once(
    start: dict[TopicPartition, int],
    more: dict[TopicPartition, int],
    min_partitions: int,
    max_records: int | None,
) -> None:
    end = {partition: start.get(partition, 0) + count for partition, count in more.items()}
    found: list[Any] = slices(start, end, min_partitions=min_partitions, max_records=max_records)
    covered = [
        (piece.topic, piece.partition, offset) for piece in found for offset in range(piece.start, piece.end)
    ]
    wanted = [
        (*partition, offset)
        for partition in sorted(end)
        for offset in range(start.get(partition, 0), end[partition])
    ]
    assert covered == wanted
    assert all(piece.end > piece.start for piece in found)
    if max_records is not None:
        assert all(piece.end - piece.start <= max_records for piece in found)
    for piece in found:
        assert piece.is_new == (TopicPartition(piece.topic, piece.partition) not in start)


def test_large_partitions_are_cut_for_more_tasks() -> None:
    start = {TopicPartition("a", 0): 0, TopicPartition("a", 1): 0}
    end = {TopicPartition("a", 0): 900, TopicPartition("a", 1): 100}
    found: list[Any] = slices(start, end, min_partitions=10)
    assert [piece.partition for piece in found].count(0) == 9
    assert len(found) == 10
    assert [type(piece) for piece in slices(start, end)] == [Slice, Slice]


@quick
@given(OFFSETS, OFFSETS, st.integers(1, 500))
def test_a_limit_is_used_up_and_never_passed(
    start: dict[TopicPartition, int], more: dict[TopicPartition, int], limit: int
) -> None:
    end = {partition: start.get(partition, 0) + count for partition, count in more.items()}
    got = limited(start, end, limit)
    assert available(start, got) == min(limit, available(start, end))
    assert got.keys() == end.keys()
    assert all(start.get(partition, 0) <= got[partition] <= end[partition] for partition in end)


def test_a_limit_is_shared_in_proportion() -> None:
    a, b, c = (TopicPartition("a", index) for index in range(3))
    got = limited({a: 0, b: 0, c: 0}, {a: 600, b: 300, c: 1}, 90)
    assert got[a] in (59, 60)
    assert got[b] in (29, 30)
    assert got[c] == 1


def test_a_small_partition_does_not_wait_for_a_large_one() -> None:
    large, *small = (TopicPartition("a", index) for index in range(11))
    end = {large: 1_000_000, **dict.fromkeys(small, 1)}
    got = limited(dict.fromkeys(end, 0), end, 20)
    assert got == {large: 10, **dict.fromkeys(small, 1)}


@quick
@given(st.integers(1, 12), st.integers(2, 12))
def test_no_partition_waits_for_ever(limit: int, count: int) -> None:
    """Though all of them get a few more records with each batch."""
    parts = [TopicPartition("a", index) for index in range(count)]
    start, end = dict.fromkeys(parts, 0), dict.fromkeys(parts, 5)
    for _ in range(4 * count):
        start = limited(start, end, limit)
        end = {part: offset + 1 for part, offset in end.items()}
    assert min(start.values()) > 0
