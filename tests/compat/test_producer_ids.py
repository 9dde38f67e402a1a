"""Producers that ask for their id while the registry cannot be used for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import aiokafka
import confluent_kafka
import kafka
import pytest

from millstream.broker.producer_ids import ProducerIds
from millstream.registry.contract import RegistryError
from millstream.testing import Broker

TIMEOUT_S = 20.0
FAILURES = 2

both = pytest.mark.parametrize("transactional_id", [None, "writer"])


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A broker that cannot get ids from its registry when it is first asked for one, nor the next time."""
    take_block = ProducerIds._take_block
    failures = 0

    async def take_late(self: ProducerIds) -> None:
        nonlocal failures
        if failures < FAILURES:
            failures += 1
            raise RegistryError("out of reach")
        await take_block(self)

    monkeypatch.setattr(ProducerIds, "_take_block", take_late)
    with Broker() as broker:
        yield broker.bootstrap
    assert failures == FAILURES


@both
def test_kafka_python(bootstrap: str, transactional_id: str | None) -> None:
    """Its idempotent producers hang for good when they are told to look for a coordinator."""
    made = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, transactional_id=transactional_id
    )
    with closing(made) as producer:
        if transactional_id is not None:
            producer.init_transactions()
            producer.begin_transaction()
        assert producer.send("t", b"x").get(TIMEOUT_S).offset == 0
        if transactional_id is not None:
            producer.commit_transaction()


@both
def test_aiokafka(bootstrap: str, transactional_id: str | None) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, transactional_id=transactional_id
        )
        async with asyncio.timeout(TIMEOUT_S), producer:
            if transactional_id is None:
                assert (await producer.send_and_wait("t", b"x")).offset == 0
            else:
                async with producer.transaction():
                    assert (await producer.send_and_wait("t", b"x")).offset == 0

    asyncio.run(run())


@both
def test_confluent(bootstrap: str, transactional_id: str | None) -> None:
    settings: dict[str, object] = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
    producer = confluent_kafka.Producer(settings)
    errors: list[object] = []
    if transactional_id is not None:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
    producer.produce("t", b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert errors == [None]
    if transactional_id is not None:
        producer.commit_transaction(TIMEOUT_S)
