"""Keys that may be set while a broker runs: each takes effect, at once and after a restart."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.cleaner import Worker
from millstream.broker.housekeeping import Housekeeping
from millstream.broker.server import Broker
from millstream.broker.transaction_admission import TransactionAdmission
from millstream.cluster.throttle import Throttle
from millstream.config.alter import AlterOp, Op, altered
from millstream.config.broker import BrokerConfig
from millstream.config.broker_keys import BROKER_KEYS
from millstream.config.topic import TOPIC_KEYS
from millstream.controller import tree
from millstream.controller.topics import NewTopic
from millstream.coordinator.groups.settings import Settings as GroupSettings
from millstream.errors import InvalidConfig, InvalidRecord
from millstream.protocol.batch import Record, encode_batch
from millstream.storage.cleaning_job import CleaningJob
from millstream.storage.compaction import Compaction

TOPIC_DEFAULTS = {
    "compression.gzip.level": "5",
    "compression.lz4.level": "5",
    "compression.type": "zstd",
    "compression.zstd.level": "7",
    "log.cleaner.delete.retention.ms": "5000",
    "log.cleaner.max.compaction.lag.ms": "6000",
    "log.cleaner.min.cleanable.ratio": "0.25",
    "log.cleaner.min.compaction.lag.ms": "7",
    "log.cleanup.policy": "compact",
    "log.flush.before.ack": "true",
    "log.flush.interval.messages": "8",
    "log.flush.interval.ms": "9",
    "log.index.interval.bytes": "10",
    "log.index.size.max.bytes": "4096",
    "log.message.timestamp.after.max.ms": "11",
    "log.message.timestamp.before.max.ms": "12",
    "log.message.timestamp.type": "LogAppendTime",
    "log.preallocate": "true",
    "log.retention.bytes": "13",
    "log.retention.ms": "14",
    "log.roll.jitter.ms": "15",
    "log.roll.ms": "16",
    "log.segment.bytes": "2000000",
    "log.segment.delete.delay.ms": "17",
    "message.max.bytes": "18000",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "true",
}
"""What a topic goes by that does not set it itself."""

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "log.cleaner.backoff.ms": "10",
}


def broker_in(folder: Path) -> Broker:
    return Broker(BrokerConfig({**SETTINGS, "log.dirs": str(folder)}))


async def alter(broker: Broker, **texts: str) -> None:
    """As IncrementalAlterConfigs does; it returns when the broker has heard of it."""
    given = {name.replace("_", "."): text for name, text in texts.items()}
    await broker.controller.set_broker_config("1", lambda _: given, validate_only=False)


async def make_topic(broker: Broker, name: str, **configs: str) -> None:
    if name not in broker.metadata.topics:
        given = {key.replace("_", "."): value for key, value in configs.items()}
        await broker.controller.create_topic(NewTopic(name, 1, 1, configs=given))


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not claim():
            await asyncio.sleep(0.005)


def now_ms() -> int:
    return int(time.time() * 1000)


# What each key does. A probe passes once the key has the value beside it.


async def held(broker: Broker) -> int:
    """Of six connections, how many are not closed by the broker."""

    async def connect(stack: AsyncExitStack) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        stack.callback(writer.close)
        return reader

    async def is_held(reader: asyncio.StreamReader) -> bool:
        try:
            return await asyncio.wait_for(reader.read(1), 0.2) != b""
        except TimeoutError:
            return True
        except ConnectionError:
            return False

    async with AsyncExitStack() as stack:
        readers = [await connect(stack) for _ in range(6)]
        count = sum(await asyncio.gather(*map(is_held, readers)))
    await until(lambda: not broker.listeners["PLAINTEXT"].connections)
    return count


async def two_connections(broker: Broker) -> None:
    assert await held(broker) == 2


async def batches_are_bounded(broker: Broker) -> None:
    await make_topic(broker, "plain")
    partition = broker.replicas.leader("plain", 0)
    large = encode_batch([Record(bytes(5000), None, (), now_ms())], codec=2)
    assert len(large) < 1000
    with pytest.raises(InvalidRecord):
        await answered(partition.append(large, 1, 9))


async def answered(answer: Any) -> None:
    if isinstance(answer, asyncio.Future):
        await answer


async def fetches_are_bounded(broker: Broker) -> None:
    assert broker.max_fetch_bytes() == 1 << 20


async def producers_are_forgotten(broker: Broker) -> None:
    await make_topic(broker, "plain")
    log = broker.replicas.leader("plain", 0).log
    end = log.end_offset
    record = [Record(b"v", None, (), now_ms())]
    broker.replicas.leader("plain", 0).append(
        encode_batch(record, producer_id=7 + end, producer_epoch=0, base_sequence=0), 1, 9
    )
    assert log.active_producers()
    await Housekeeping(broker).retain()  # from here on it is silent
    await asyncio.sleep(0.005)
    await Housekeeping(broker).retain()
    assert not log.active_producers()


async def two_logs_at_a_time(broker: Broker) -> None:
    under_way = 0
    is_over = asyncio.Event()

    async def compact(self: Worker, compaction: Compaction) -> None:
        nonlocal under_way
        under_way += 1
        await is_over.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "_compact", compact)
        try:
            for name in ("first", "second", "third"):
                await make_dirty(broker, name)
            await until(lambda: under_way == 2)
            await asyncio.sleep(0.1)
            assert under_way == 2
        finally:
            is_over.set()


async def make_dirty(broker: Broker, name: str) -> None:
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
    await make_topic(broker, name, **settings, internal_segment_bytes="2000")
    partition = broker.replicas.leader(name, 0)
    for _ in range(10):
        partition.append(encode_batch([Record(bytes(500), b"key", (), now_ms())]), 1, 9)


async def compaction_takes(place: int, value: float, broker: Broker) -> None:
    """What the next compaction is told: bytes for keys, how full, bytes for reading, bytes a second."""
    told: list[tuple[float, ...]] = []
    prepare = Compaction.prepare

    def spied(self: Compaction, key_bytes: int, load: float, seed: bytes, chunk_bytes: int) -> CleaningJob:
        told.append((key_bytes, load, chunk_bytes, broker.cleaner.rate()))
        return prepare(self, key_bytes, load, seed, chunk_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compaction, "prepare", spied)
        await make_dirty(broker, "dirty")
        await until(lambda: told)
    assert told[-1][place] == value


async def pauses_are_long(broker: Broker) -> None:
    worker = Worker(broker.cleaner)
    await worker.work()
    assert worker.pause_ms() == 20


def holds_back(throttle: Throttle) -> None:
    throttle.spend(100_000)
    assert 0.5 < throttle.wait_s() <= 1.0


async def leaders_hold_back(broker: Broker) -> None:
    assert broker.replicas.sessions is not None
    holds_back(broker.replicas.sessions._throttle)


async def followers_hold_back(broker: Broker) -> None:
    assert broker.replicas._fetchers is not None
    holds_back(broker.replicas._fetchers._throttle)


async def assignments_are_rare(broker: Broker) -> None:
    assert GroupSettings(broker.config).consumer_assignment_interval_ms({}) == 5000


async def nothing_is_verified(broker: Broker) -> None:
    assert not TransactionAdmission(broker)._verifies


Probe = Callable[[Broker], Awaitable[None]]


def compaction(place: int, value: float) -> Probe:
    return lambda broker: compaction_takes(place, value, broker)


PROBES: dict[str, tuple[str, Probe]] = {
    "follower.replication.throttled.rate": ("100000", followers_hold_back),
    "group.consumer.assignment.interval.ms": ("5000", assignments_are_rare),
    "leader.replication.throttled.rate": ("100000", leaders_hold_back),
    "listener.name.plaintext.max.connections": ("2", two_connections),
    "log.cleaner.backoff.ms": ("20", pauses_are_long),
    "log.cleaner.dedupe.buffer.size": ("2000000", compaction(0, 2_000_000)),
    "log.cleaner.io.buffer.load.factor": ("0.5", compaction(1, 0.5)),
    "log.cleaner.io.buffer.size": ("200000", compaction(2, 100_000)),
    "log.cleaner.io.max.bytes.per.second": ("1e9", compaction(3, 1e9)),
    "log.cleaner.threads": ("2", two_logs_at_a_time),
    "max.connections": ("2", two_connections),
    "max.connections.per.ip": ("2", two_connections),
    "max.connections.per.ip.overrides": ("127.0.0.1:2", two_connections),
    "max.decompressed.bytes": ("1024", batches_are_bounded),
    "max.unsent.bytes": (str(1 << 20), fetches_are_bounded),
    "producer.id.expiration.ms": ("1", producers_are_forgotten),
    "transaction.partition.verification.enable": ("false", nothing_is_verified),
}


def test_every_key_that_may_be_set_while_a_broker_runs_is_here() -> None:
    dynamic = {name for name, key in BROKER_KEYS.items() if key.scope != "read-only" and not key.idle}
    assert TOPIC_DEFAULTS.keys() | (PROBES.keys() & BROKER_KEYS.keys()) == dynamic


@pytest.mark.parametrize("name", PROBES)
def test_a_key_takes_effect_while_a_broker_runs_and_when_it_starts_again(tmp_path: Path, name: str) -> None:
    text, probe = PROBES[name]

    async def main() -> None:
        async with asyncio.timeout(60):
            async with broker_in(tmp_path) as broker:
                with pytest.raises((AssertionError, pytest.fail.Exception, TimeoutError)):
                    await asyncio.wait_for(probe(broker), 1)
                await alter(broker, **{name: text})
                await probe(broker)
            async with broker_in(tmp_path) as broker:
                await probe(broker)

    asyncio.run(main())


def test_what_topics_go_by_takes_effect_while_a_broker_runs_and_when_it_starts_again(tmp_path: Path) -> None:
    def seen(broker: Broker) -> dict[str, object]:
        config = broker.replicas.leader("plain", 0).log.config
        return {key.name: getattr(config, re.sub(r"\W", "_", key.name)) for key in wanted}

    wanted = {
        key: synonym.name
        for key in TOPIC_KEYS.values()
        for synonym in key.synonyms
        if synonym.name in TOPIC_DEFAULTS
    }
    assert sorted(wanted.values()) == sorted(TOPIC_DEFAULTS)
    values = {key.name: key.parse(TOPIC_DEFAULTS[name]) for key, name in wanted.items()}
    expected = {key: frozenset(value) if isinstance(value, tuple) else value for key, value in values.items()}

    async def main() -> None:
        async with asyncio.timeout(60):
            async with broker_in(tmp_path) as broker:
                await make_topic(broker, "plain")
                assert not seen(broker).items() & expected.items()
                await alter(broker, **TOPIC_DEFAULTS)
                assert seen(broker) == expected
            async with broker_in(tmp_path) as broker:
                assert seen(broker) == expected

    asyncio.run(main())


def test_fewer_and_more_logs_are_compacted_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path) as broker:
            await alter(broker, log_cleaner_threads="2")
            await two_logs_at_a_time(broker)
            await alter(broker, log_cleaner_threads="0")
            await until(lambda: not broker.cleaner.busy)
            before = broker.cleaner.runs.value
            await make_dirty(broker, "late")
            await asyncio.sleep(0.1)
            assert broker.cleaner.runs.value == before
            await alter(broker, log_cleaner_threads="2")
            await two_logs_at_a_time(broker)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["listeners", "listener.security.protocol.map"])
def test_where_a_broker_listens_cannot_be_changed_while_it_runs(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path) as broker:
            before = broker.config[name]
            with pytest.raises(InvalidConfig, match="cannot be changed while"):
                await alter(broker, **{name: "PLAINTEXT://:1" if name == "listeners" else "PLAINTEXT:SSL"})
            assert broker.config[name] == before

    asyncio.run(main())


def test_one_value_that_does_not_hold_here_does_not_keep_others_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older version may have written it, or the broker had another listener when it was set."""
    gone = "listener.name.gone.max.connections"

    async def change(broker: Broker, **texts: str) -> None:
        ops = [AlterOp(name.replace("_", "."), Op.SET, text) for name, text in texts.items()]
        await broker.controller.set_broker_config(
            "1", lambda texts: altered(texts, ops, BROKER_KEYS, broker.config.inherited), validate_only=False
        )

    def said(of: str) -> list[str]:
        return [each.levelname for each in caplog.records if of in each.getMessage()]

    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path) as broker:
            await alter(broker, log_retention_ms="5000")
            config = {"listeners": "PLAINTEXT://:1", gone: "7", "log.retention.ms": "6000"}
            await broker.registry.set(f"{tree.BROKER_CONFIGS}/1", tree.dump(tree.ConfigNode(config)))
        async with asyncio.timeout(60), broker_in(tmp_path) as broker:
            assert broker.config["log.retention.ms"] == 6000
            assert broker.config["listeners"] == (SETTINGS["listeners"],)
            await change(broker, log_retention_ms="7000")
            assert broker.config["log.retention.ms"] == 7000
            assert said("for listeners does not count") == ["WARNING"]
            assert said(f"{gone} does not hold on this broker") == ["WARNING"]
            with pytest.raises(InvalidConfig, match="none of the listeners"):
                await change(broker, **{gone.replace(".", "_"): "8"})

    asyncio.run(main())
