"""Replicas that cannot be read everywhere, or not written: others lead, and they are mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.controller.topics import DEFAULT, NewTopic
from millstream.errors import KafkaStorageError, NotLeaderOrFollower
from tests.cluster.brokers import Brokers, run, until
from tests.small_disk import fill, mounted

RECORDS = 40
DISK_BYTES = 64 << 20
ROOM_BYTES = 1 << 20
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


async def written(brokers: Brokers) -> int:
    """A topic with records in several segments on all brokers; who leads it."""
    configs = {"min.insync.replicas": "2", "segment.bytes": "1048576"}
    wanted = NewTopic("t", DEFAULT, DEFAULT, {0: [1, 2, 3]}, configs)
    await brokers.controller.controller.create_topic(wanted)
    for number in range(RECORDS):
        await brokers.send("t", b"%d " % number + bytes(100_000))
    for number in brokers.ids:
        await brokers.until_committed(number, "t", RECORDS)
    return brokers.leader_of("t")


def damage(brokers: Brokers, number: int, at: float) -> int:
    """Change a byte of a batch's records in one of a replica's segments; the offset where that is."""
    log = brokers.replica(number, "t").log
    segments = list(log.segments)
    segment = segments[int(at * (len(segments) - 1))]
    path = Path(segment.path)
    data = bytearray(path.read_bytes())
    offset, position = segment.base_offset, 0
    while position < len(data) // 2:
        position += int.from_bytes(data[position + 8 : position + 12]) + 12
        offset += 1
    data[position + 100] ^= 1
    with path.open("r+b") as file:  # in the same file, which the broker has open
        file.seek(position + 100)
        file.write(data[position + 100 : position + 101])
    return offset


async def refilled(brokers: Brokers, number: int, *, is_full: bool) -> None:
    """Let a broker's log dir have no room, or have it again, as far as the broker can see."""
    (folder,) = brokers[number].store.dirs
    folder.has_room = lambda: not is_full  # type: ignore[method-assign]
    folder.is_full = is_full


async def whole(brokers: Brokers) -> None:
    """Wait until all replicas are sound and in sync, and see that they have the same records, all of them."""

    def is_whole() -> bool:
        sound = all(brokers.replica(number, "t").log.damage is None for number in brokers.ids)
        return sound and brokers.isr_of("t") == [1, 2, 3]

    await until(is_whole)
    end = max(brokers.replica(number, "t").high_watermark for number in brokers.ids)
    for number in brokers.ids:
        await brokers.until_committed(number, "t", end)
        assert brokers.content(number, "t") == brokers.content(1, "t")
        assert brokers.replica(number, "t").log.start_offset == 0


@pytest.mark.parametrize("at", [0, 0.5, 1])
def test_another_leads_where_a_leaders_records_are_damaged_and_they_are_copied_anew(
    tmp_path: Path, at: float
) -> None:
    async def test(brokers: Brokers) -> None:
        leader = await written(brokers)
        bad = damage(brokers, leader, at)
        refused = await brokers.fetch(leader, "t", bad)
        assert refused.error_code == KafkaStorageError.code
        await until(lambda: brokers.leader_of("t") not in (leader, -1))
        other = brokers.leader_of("t")
        found = await brokers.fetch(other, "t", bad)
        assert (found.error_code, bool(found.records)) == (0, True)
        await brokers.send("t", b"goes on")
        await whole(brokers)
        await brokers.stop(*(number for number in brokers.ids if number != leader))
        await until(lambda: brokers.leader_of("t") == leader)
        for offset in range(RECORDS):
            found = await brokers.fetch(leader, "t", offset)
            assert (found.error_code, bool(found.records)) == (0, True)

    run(test, tmp_path)


def test_a_new_replica_is_not_kept_from_copying_by_a_leaders_damage(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        leader = await written(brokers)
        last = next(number for number in brokers.ids if number != leader)
        await brokers.stop(last)
        await until(lambda: last not in brokers.isr_of("t"))
        for file in (tmp_path / str(last) / "t-0").iterdir():
            file.unlink()
        damage(brokers, leader, 0.5)
        await brokers.start(last)
        await whole(brokers)

    run(test, tmp_path)


def test_a_follower_that_is_damaged_leaves_the_isr_until_it_is_whole(tmp_path: Path) -> None:
    """A consumer that reads from it finds that out."""

    async def test(brokers: Brokers) -> None:
        leader = await written(brokers)
        epoch = brokers.replica(leader, "t").leader_epoch
        follower = next(number for number in brokers.ids if number != leader)
        bad = damage(brokers, follower, 0.5)
        refused = await brokers.fetch(follower, "t", bad, rack=f"rack-{follower}")
        assert refused.error_code == KafkaStorageError.code
        await until(lambda: brokers.replica(leader, "t").leader_epoch > epoch)
        await whole(brokers)
        assert brokers.leader_of("t") == leader

    run(
        test,
        tmp_path,
        replica_selector_class="org.apache.kafka.common.replica.RackAwareReplicaSelector",
    )


def test_who_is_alone_in_sync_goes_on_with_what_is_sound(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        leader = await written(brokers)
        others = [number for number in brokers.ids if number != leader]
        await brokers.stop(*others)
        await until(lambda: brokers.isr_of("t") == [leader])
        bad = damage(brokers, leader, 0.5)
        assert (await brokers.fetch(leader, "t", bad)).error_code == KafkaStorageError.code
        await until(lambda: any(brokers[leader].controller.term.picture.hindered.values()))
        for offset in (bad - 1, bad + 1, RECORDS - 1):
            found = await brokers.fetch(leader, "t", offset)
            assert (found.error_code, bool(found.records)) == (0, True)
        await brokers.start(
            *others
        )  # they have all that was committed: one of them leads, as soon as it is in sync
        await until(lambda: brokers.leader_of("t") in others)
        await whole(brokers)

    run(test, tmp_path)


def test_a_broker_whose_disk_is_full_lets_others_lead_until_it_has_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(brokers: Brokers) -> None:
        assert await written(brokers) == 1
        filler = fill(tmp_path / "1", ROOM_BYTES)
        for _ in range(ROOM_BYTES // 100_000 + 2):
            refused = await brokers.produce(1, "t", bytes(100_000))
            if refused.error_code:
                break
        assert refused.error_code in (KafkaStorageError.code, NotLeaderOrFollower.code)
        await until(lambda: brokers.leader_of("t") in (2, 3))
        await until(lambda: brokers.isr_of("t") == [2, 3])
        for number in range(20):
            await brokers.send("t", b"without it %d" % number, bytes(100_000))
        assert brokers.isr_of("t") == [2, 3]
        filler.unlink()
        await whole(brokers)

    with mounted(tmp_path / "1", DISK_BYTES):
        run(test, tmp_path)
    said = [each.message for each in caplog.records if "has no room" in each.message]
    assert len(said) == 1, said
    assert str(tmp_path / "1") in said[0]


def test_a_compacted_log_that_is_damaged_is_mended_and_compacted(tmp_path: Path) -> None:
    """Compaction meets the damage, on whichever broker, though nobody reads there."""

    async def test(brokers: Brokers) -> None:
        leader = await written(brokers)
        follower = next(number for number in brokers.ids if number != leader)
        damage(brokers, follower, 0)
        epoch = brokers.replica(leader, "t").leader_epoch
        await brokers.controller.controller.set_topic_config(
            "t", lambda now: {**now, **COMPACTED}, validate_only=False
        )
        await until(lambda: brokers.replica(leader, "t").leader_epoch > epoch)
        await until(lambda: brokers.isr_of("t") == [1, 2, 3])
        await until(lambda: not brokers[follower].cleaner.uncleanable)

    run(test, tmp_path, log_cleaner_backoff_ms="100")


def test_what_is_sound_on_a_damaged_replica_is_kept_while_the_leader_cannot_give_it(tmp_path: Path) -> None:
    """Both replicas are damaged, in different places: nothing is cut off that is nowhere else."""

    async def test(brokers: Brokers) -> None:
        await brokers.create("t", replicas=2, segment_bytes="1048576")
        for number in range(RECORDS):
            await brokers.send("t", b"%d " % number + bytes(100_000))
        leader, follower = (
            brokers.leader_of("t"),
            next(n for n in brokers.isr_of("t") if n != brokers.leader_of("t")),
        )
        await brokers.until_committed(follower, "t", RECORDS)
        bad, elsewhere = damage(brokers, leader, 0), damage(brokers, follower, 1)
        assert bad < elsewhere
        assert (await brokers.fetch(leader, "t", bad)).error_code == KafkaStorageError.code
        await until(lambda: brokers.leader_of("t") == follower)
        await until(lambda: brokers.replica(follower, "t").log.damage is not None)  # it was made to read
        assert brokers.replica(leader, "t").log.end_offset == RECORDS
        assert brokers.replica(leader, "t").log.read(elsewhere, 1).data
        await _mended_when_deleted(brokers, elsewhere + 1)

    run(test, tmp_path)


async def _mended_when_deleted(brokers: Brokers, start: int) -> None:
    """What neither could read is deleted on the leader alone: then the other is copied anew from there."""
    leader = brokers.leader_of("t")
    (other,) = {*brokers.replica(leader, "t").state.replicas} - {leader}
    brokers.replica(leader, "t").delete_records(start)
    await until(lambda: len(brokers.isr_of("t")) == 2)
    assert brokers.replica(other, "t").log.damage is None
    assert brokers.replica(other, "t").log.start_offset == start
    assert brokers.content(other, "t") == brokers.content(leader, "t")


def test_two_damages_one_after_the_other_are_mended(tmp_path: Path) -> None:
    """The second is met when the first has just been cut off, before the controller has heard of that."""

    async def test(brokers: Brokers) -> None:
        leader = await written(brokers)
        follower = next(number for number in brokers.ids if number != leader)
        low, high = damage(brokers, follower, 0), damage(brokers, follower, 1)
        log = brokers.replica(follower, "t").log
        with pytest.raises(KafkaStorageError):
            log.read(high, 1)
        cuts = log.cuts
        await until(lambda: log.cuts > cuts)
        with pytest.raises(KafkaStorageError):
            log.read(low, 1)
        await until(lambda: log.cuts > cuts + 1)
        await whole(brokers)

    run(test, tmp_path)


def test_a_damaged_follower_that_is_needed_stays_in_sync(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        leader = await written(brokers)
        follower, away = (number for number in brokers.ids if number != leader)
        await brokers.stop(away)
        await until(lambda: brokers.isr_of("t") == sorted([leader, follower]))
        bad = damage(brokers, follower, 0.5)
        with pytest.raises(KafkaStorageError):
            brokers.replica(follower, "t").log.read(bad, 1)
        await until(lambda: any(brokers.controller.controller.term.picture.hindered.values()))
        for number in range(20):
            answer = await brokers.produce(leader, "t", b"%d" % number)
            assert answer.error_code == 0
        assert brokers.replica(follower, "t").log.damage is not None
        await brokers.start(away)
        await whole(brokers)

    run(test, tmp_path)


def test_a_full_broker_keeps_no_other_out_of_the_isr(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        leader = await written(brokers)
        full, other = (number for number in brokers.ids if number != leader)
        await refilled(brokers, full, is_full=True)
        await until(lambda: brokers.isr_of("t") == sorted([leader, other]))
        await brokers.stop(other)
        await until(lambda: brokers.isr_of("t") == [leader])
        await brokers.start(other)
        await until(lambda: other in brokers.isr_of("t"))
        assert (await brokers.produce(leader, "t", b"goes on")).error_code == 0
        await refilled(brokers, full, is_full=False)
        await whole(brokers)

    run(test, tmp_path)


def test_where_all_are_full_one_still_leads_and_all_come_back(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        leader = await written(brokers)
        await refilled(brokers, leader, is_full=True)
        await until(lambda: brokers.leader_of("t") not in (leader, -1))
        second = brokers.leader_of("t")
        await refilled(brokers, second, is_full=True)
        await until(lambda: brokers.leader_of("t") not in (leader, second, -1))
        last = brokers.leader_of("t")
        await refilled(brokers, last, is_full=True)
        picture = brokers.controller.controller.term.picture
        await until(lambda: len(picture.hindered) == 3)
        assert brokers.leader_of("t") == last
        for number in (second, leader, last):
            await refilled(brokers, number, is_full=False)
        await whole(brokers)

    run(test, tmp_path)
