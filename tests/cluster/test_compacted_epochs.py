"""Copies of a compacted log: where the records of each leader began is known, also if those are gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millstream.protocol.batch import decode_records, encode_batch
from millstream.protocol.record import Record
from millstream.storage.cleanable import find_cleanable
from millstream.storage.compaction import compact
from millstream.storage.log import Appended
from tests.cluster.nodes import NOW_MS, Node, Nodes, run, until


def put(node: Node, key: bytes, value: bytes, acks: int = -1) -> Appended:
    appended = node.partition().append(encode_batch([Record(value, key, (), NOW_MS)]), acks, 9)
    assert isinstance(appended, Appended)
    return appended


async def commit(node: Node, key: bytes, *values: bytes) -> None:
    for value in values:
        acknowledged = node.partition().when_acknowledged(-1, put(node, key, value))
        if acknowledged is not None:
            await acknowledged


def table(node: Node) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in decode_records(node.content())}


def test_a_copy_of_a_compacted_log_tells_where_another_diverged(tmp_path: Path) -> None:
    """All records with which a leader began are gone. One that led before and was alone with its own must
    hear that they are not those, also from a replica that never saw the others."""

    async def test(nodes: Nodes) -> None:
        await nodes.create(cleanup_policy="compact")
        await commit(nodes[1], b"a", b"committed")
        await nodes.stop(2, 3)
        for _ in range(2):
            put(nodes[1], b"a", b"never committed", acks=1)
        await nodes.start(2, 3)
        nodes.elect(2, [2, 3])
        await nodes.tell(2, 3, is_new=False)
        await commit(nodes[2], b"b", b"1", b"2", b"3")
        log = nodes[2].partition().log
        log.roll(log.end_offset)
        await commit(nodes[2], b"c", b"1")
        compact(find_cleanable(log, log.end_offset, NOW_MS), NOW_MS, 1 << 20)
        await nodes.stop(3)
        shutil.rmtree(nodes[3].path)
        nodes.elect(2, [2])
        await nodes.tell(2)
        await nodes.start(3)
        await nodes.tell(3, is_new=False)
        await until(lambda: nodes.topic.partitions[0].isr == [2, 3])
        nodes.elect(3, [2, 3])
        await nodes.tell(2, 3)
        await commit(nodes[3], b"c", b"2")
        await nodes.tell(1)
        await nodes[1].until_committed(6)
        assert [table(nodes[one])[b"a"] for one in (1, 2, 3)] == [b"committed"] * 3

    run(test, tmp_path)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_compacted_away_for_records_that_are_cut_off_is_copied_again(
    tmp_path: Path, is_restarted: bool
) -> None:
    """After an unclean election: the leader has the older record, and no later one."""

    async def test(nodes: Nodes) -> None:
        await nodes.create(cleanup_policy="compact")
        await commit(nodes[1], b"a", b"older")
        await commit(nodes[1], b"b", b"1")
        await nodes.stop(2)
        nodes.elect(1, [1])
        await nodes.tell(1)
        await commit(nodes[1], b"a", b"later")
        log = nodes[1].partition().log
        log.roll(log.end_offset)
        await commit(nodes[1], b"c", b"1")
        compact(find_cleanable(log, log.end_offset, NOW_MS), NOW_MS, 1 << 20)
        assert decode_records(nodes[1].content())[0].key == b"b"
        nodes.elect(2, [2])
        await nodes.start(2)
        await nodes.tell(2, is_new=False)
        await commit(nodes[2], b"d", b"1")
        if is_restarted:
            await nodes.stop(1)
            await nodes.start(1)
        await nodes.tell(1, is_new=False)
        await until(lambda: nodes.topic.partitions[0].isr == [1, 2])
        await nodes[1].until_committed(3)
        assert table(nodes[1]) == table(nodes[2]) == {b"a": b"older", b"b": b"1", b"d": b"1"}

    run(test, tmp_path, count=2)
