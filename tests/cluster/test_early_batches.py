"""A batch that came before its partition did is not overtaken by those in flight behind it."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from millstream.cluster import early_batches
from millstream.cluster.early_batches import EarlyBatches
from millstream.cluster.metadata import Topic
from millstream.errors import UnknownTopicId, UnknownTopicOrPartition
from millstream.storage.producer_state import REFUSED_MS
from tests.cluster.brokers import Brokers, batch, run
from tests.storage.logs import TestClock

TOPIC = Topic("t", UUID(int=7), [])
UNKNOWN = UnknownTopicOrPartition()


def sent(sequence: int) -> bytes:
    return batch(b"v", producer_id=9, producer_epoch=0, base_sequence=sequence)


def test_a_batch_is_waited_for_that_was_refused_before_its_topic_was_there(tmp_path: Path) -> None:
    """librdkafka takes the first one for written otherwise, since those behind it were."""

    async def test(brokers: Brokers) -> None:
        async def send(sequence: int) -> tuple[int, int]:
            answer = await brokers.produce(
                1, "t", b"v", producer_id=9, producer_epoch=0, base_sequence=sequence
            )
            return answer.error_code, answer.base_offset

        assert await send(0) == (UNKNOWN.code, -1)
        await brokers.create("t", 1, 1)
        assert await send(1) == (UNKNOWN.code, -1)
        assert [await send(sequence) for sequence in range(3)] == [(0, 0), (0, 1), (0, 2)]

    run(test, tmp_path, count=1, auto_create_topics_enable="false")


def test_what_was_refused_is_given_to_the_partition_that_was_meant() -> None:
    early = EarlyBatches(TestClock())
    for named in (TOPIC.name, TOPIC.topic_id, "other"):
        for sequence in (0, 0, 1):  # the first one was sent again
            early.note(named, 3, sent(sequence), UNKNOWN if isinstance(named, str) else UnknownTopicId())
    early.note(TOPIC.name, 3, batch(b"of nobody"), UNKNOWN)
    early.note(TOPIC.name, 3, b"no batch", UNKNOWN)
    assert early.take(TOPIC, 2) == []
    found = early.take(TOPIC, 3)
    assert [type(error) for _, error in found] == [UnknownTopicOrPartition] * 2 + [UnknownTopicId] * 2
    assert [header for header, _ in found] == [sent(0)[:61], sent(1)[:61]] * 2
    assert early.take(TOPIC, 3) == []


def test_what_does_not_come_again_is_forgotten() -> None:
    clock = TestClock()
    early = EarlyBatches(clock)
    early.note("t", 0, sent(0), UNKNOWN)
    clock.ms += REFUSED_MS
    early.note("t", 0, sent(5), UNKNOWN)
    clock.ms += 1
    assert [header for header, _ in early.take(TOPIC, 0)] == [sent(5)[:61]]
    for sequence in range(early_batches.MAX_NOTED + 5):
        early.note("t", 0, sent(sequence), UNKNOWN)
    assert early.take(TOPIC, 0)[0][0] == sent(5)[:61]
