"""What producers are told where it is not known yet whether their records may be written."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from millstream.broker.server import Broker
from millstream.cluster.partition import ALL
from millstream.config.broker import BrokerConfig
from millstream.controller.topics import NewTopic
from millstream.errors import NotEnoughReplicas, UnknownTopicOrPartition
from millstream.protocol.batch import encode_batch
from millstream.protocol.record import Record


@pytest.mark.parametrize("version", [10, 12])
def test_a_broker_that_has_not_heard_of_the_coordinators_yet(tmp_path: Path, version: int) -> None:
    """The first transaction of a cluster: its producer has an id, from a broker that knows more."""

    async def main() -> None:
        config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        async with Broker(BrokerConfig(config)) as broker:
            await broker.controller.create_topic(NewTopic("t", 1, 1))
            record = Record(b"x", None, (), broker.clock.now_ms())
            data = encode_batch(
                [record], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
            )
            with pytest.raises(NotEnoughReplicas):  # which every producer tries again
                broker.replicas.leader("t", 0).append(data, ALL, version, "x")

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_partition_that_goes_away_before_another_broker_was_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is left of what was asked: no coroutine that nobody awaited, no failure that nobody saw."""

    async def main() -> None:
        config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        async with Broker(BrokerConfig(config)) as broker:
            await broker.controller.create_topic(NewTopic("t", 1, 1))
            monkeypatch.setattr(broker.coordinators, "partition_of", lambda *_: 0)
            monkeypatch.setattr(broker.coordinators, "leader_of", lambda *_: 2)
            record = Record(b"x", None, (), broker.clock.now_ms())
            data = encode_batch(
                [record], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
            )
            partition, tasks = broker.replicas.leader("t", 0), len(asyncio.all_tasks())
            appended = partition.append(data, ALL, 12, "x")
            assert isinstance(appended, asyncio.Future)
            partition.fail(UnknownTopicOrPartition())
            with pytest.raises(UnknownTopicOrPartition):
                await appended
            while len(asyncio.all_tasks()) > tasks:
                await asyncio.sleep(0.01)
            gc.collect()

    asyncio.run(asyncio.wait_for(main(), 30))
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
