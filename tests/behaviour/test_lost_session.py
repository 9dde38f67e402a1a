"""A broker process that was stopped for longer than its session lasts: it becomes a member again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from millstream.model import NO_UUID
from millstream.protocol.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    InitProducerIdRequest,
    MetadataRequest,
)
from tests.processes import BrokerProcess, until
from tests.wire import Wire, append, batch, create_topic, end_offset, produce

NONE, LEADER_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_CONTROLLER = 0, 5, 14, 41
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER = 3, 6
TIMEOUT_S = 1.0


@pytest.fixture
def broker(broker_process: Callable[..., BrokerProcess]) -> BrokerProcess:
    return broker_process(registry_session_timeout_ms=str(int(TIMEOUT_S * 1000))).start()


@contextmanager
def stopped(broker: BrokerProcess) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def create(wire: Wire, name: str) -> int:
    entry = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (result,) = wire.ask(CreateTopicsRequest(topics=[entry], timeout_ms=10_000)).topics
    code: int = result.error_code
    return code


def producer_id(wire: Wire) -> int:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    code: int = wire.ask(request).error_code
    return code


def auto_create(wire: Wire, name: str) -> int:
    wanted = MetadataRequest.MetadataRequestTopic(name=name)
    (topic,) = wire.ask(MetadataRequest(topics=[wanted], allow_auto_topic_creation=True), 8).topics
    code: int = topic.error_code
    return code


def append_soon(wire: Wire, topic: str, value: bytes) -> None:
    """As clients do: the loss may be noticed only after the first requests that follow the stop."""

    def is_appended() -> bool:
        code = produce(wire, topic, batch([value])).error_code
        assert code in (NONE, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER)
        return bool(code == NONE)

    until(is_appended, 30, "a record is appended")


def _delete(wire: Wire, wanted: DeleteTopicsRequest.DeleteTopicState) -> int:
    (gone,) = wire.ask(DeleteTopicsRequest(topics=[wanted], timeout_ms=10_000)).responses
    code: int = gone.error_code
    assert code in (NONE, NOT_CONTROLLER)
    return code


def test_topics_and_producer_ids_come_again_after_a_stop(broker: BrokerProcess) -> None:
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "before")
        append(wire, "before", b"a")
        for turn in range(2):
            with stopped(broker):
                time.sleep(2 * TIMEOUT_S)
            seen: list[int] = []

            def is_created(name: str = f"after-{turn}", seen: list[int] = seen) -> bool:
                seen.append(create(wire, name))
                return seen[-1] == NONE

            until(is_created, 30, "a topic is created")
            assert set(seen) <= {NONE, NOT_CONTROLLER}
            assert producer_id(wire) in (NONE, COORDINATOR_LOAD_IN_PROGRESS)
            until(lambda: producer_id(wire) == NONE, 30, "a producer id")
            assert auto_create(wire, f"auto-{turn}") in (NONE, LEADER_NOT_AVAILABLE)
            append_soon(wire, "before", b"b")
        assert end_offset(wire, "before") == 3
        wanted = DeleteTopicsRequest.DeleteTopicState(name="before", topic_id=NO_UUID)
        until(lambda: _delete(wire, wanted) == NONE, 30, "the topic is deleted")
    assert "the session with the registry is lost" in broker.output
    assert "Traceback" not in broker.output
    assert broker.stop() == 0


def test_what_came_after_a_stop_is_there_after_a_kill(broker: BrokerProcess) -> None:
    with Wire(broker.bootstrap) as wire:
        with stopped(broker):
            time.sleep(2 * TIMEOUT_S)
        until(lambda: create(wire, "t") == NONE, 30, "a topic is created")
        append_soon(wire, "t", b"a")
    broker.kill()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert end_offset(wire, "t") == 1
        assert create(wire, "u") == NONE
