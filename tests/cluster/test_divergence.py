"""Logs that differ from their leader's are cut off where the two part."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.nodes import Nodes, run, until


def test_a_leader_that_was_alone_with_its_records_gives_them_up(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create()
        await nodes[1].send(b"committed")
        await nodes.stop(2, 3)
        nodes[1].append(b"only here")
        nodes[1].append(b"only here, too")
        await nodes.start(2, 3)
        nodes.elect(2, [2, 3])
        await nodes.tell(2, 3, is_new=False)
        await nodes[2].send(b"instead")
        await nodes.tell(1)
        await until(lambda: nodes[1].partition().log.end_offset == 2)
        await until(lambda: nodes.topic.partitions[0].isr == [1, 2, 3])
        await nodes[2].send(b"and on")
        await until(lambda: nodes[1].partition().high_watermark == 3)
        assert nodes[1].content() == nodes[2].content()
        assert b"only here" not in nodes[1].content()
        assert nodes[1].partition().log.epochs.entries == ((0, 0), (1, 1))

    run(test, tmp_path)


def test_a_leader_that_wrote_nothing_in_its_epoch_follows_the_next(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create()
        await nodes[1].send(b"a")
        await until(lambda: nodes[3].partition().high_watermark == 1)
        for leader in (2, 3, 1, 2):
            nodes.elect(leader, [1, 2, 3])
            await nodes.tell(leader)
        await nodes.tell()
        await nodes[2].send(b"b")
        for node in (nodes[1], nodes[3]):
            await node.until_committed(2)
            assert node.content() == nodes[2].content()
            assert node.partition().log.epochs.entries == ((0, 0), (4, 1))

    run(test, tmp_path)


def test_a_log_that_diverged_over_several_epochs_is_cut_off_step_by_step(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(replicas=[1, 2])
        await nodes[1].send(b"common")
        await nodes.stop(2)
        for _ in range(3):  # epochs that only node 1 knows
            nodes.elect(1, [1])
            await nodes.tell(1)
            nodes[1].append(b"lost", b"lost")
        await nodes.stop(1)
        nodes.topic.partitions[0].leader_epoch = 1  # as if the controller had never heard of them
        await nodes.start(1, 2)
        nodes.elect(2, [2])
        await nodes.tell(2, is_new=False)
        nodes[2].append(b"kept")
        nodes.topic.partitions[0].leader_epoch = 9
        nodes.elect(2, [2])
        await nodes.tell(2)
        nodes[2].append(b"kept, too")
        await nodes.tell(1, is_new=False)
        await until(lambda: nodes.topic.partitions[0].isr == [1, 2])
        await nodes[2].send(b"end")
        await until(lambda: nodes[1].partition().high_watermark == 4)
        assert nodes[1].content() == nodes[2].content()
        assert nodes[1].partition().log.epochs.entries == nodes[2].partition().log.epochs.entries

    run(test, tmp_path, count=2)


def test_after_an_unclean_election_all_are_like_the_new_leader(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes.create(replicas=[1, 2])
        await nodes[1].send(b"kept")
        await nodes[2].until_committed(1)
        await nodes.stop(2)
        nodes.elect(1, [1])
        await nodes.tell(1)
        await nodes[1].send(b"lost", b"lost")
        assert nodes[1].partition().high_watermark == 3
        await nodes.start(2)
        nodes.elect(2, [2])
        await nodes.tell(2, is_new=False)
        await nodes[2].send(b"other")
        await nodes.tell(1)
        await until(lambda: nodes.topic.partitions[0].isr == [1, 2])
        await nodes[2].send(b"last")
        await nodes[1].until_committed(3)
        assert nodes[1].content() == nodes[2].content()
        assert b"lost" not in nodes[1].content()

    run(test, tmp_path, count=2)
