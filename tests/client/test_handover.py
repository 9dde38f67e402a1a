"""A transaction is written by one producer and ended by somebody else, who may ask more than once."""

from __future__ import annotations

import pytest

from millstream import Admin, Producer
from millstream.client import producer_coordinator
from millstream.client.offsets import READ_COMMITTED
from millstream.client.producer_identity import HandedOver
from millstream.errors import InvalidTxnState, KafkaError, ProducerFenced
from tests.client.logs import values_in
from tests.client.test_producer import Make, topic
from tests.conftest import Name

__all__ = ["topic"]


@pytest.fixture(params=[1, 2], autouse=True)
def transaction_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Version 1, of Kafka before 4.0: an end does not raise the epoch."""
    version: int = request.param
    if version == 1:
        monkeypatch.setattr(producer_coordinator, "VERSION_2", 99)
    return version


def handed_over(bootstrap: str, name: str, transactional_id: str, value: bytes) -> HandedOver:
    with Producer(bootstrap, transactional_id=transactional_id) as producer:
        producer.begin_transaction()
        producer.send(name, value)
        handed = producer.hand_over_transaction()
        with pytest.raises(ProducerFenced, match="handed over"):
            producer.begin_transaction()
    assert handed is not None
    return handed


@pytest.mark.parametrize("is_commit", [True, False])
def test_another_process_ends_it_and_may_ask_again(
    either_bootstrap: str, topic: Make, new_name: Name, is_commit: bool
) -> None:
    name = topic()
    handed = handed_over(either_bootstrap, name, new_name("id"), b"given")
    with Admin(either_bootstrap) as admin:
        assert admin.describe_transaction(handed.transactional_id).state == "Ongoing", (
            "the close left it open"
        )
        for _ in range(2):
            admin.end_transaction(handed, is_commit=is_commit)
        with pytest.raises(InvalidTxnState):
            admin.end_transaction(handed, is_commit=not is_commit)
    assert values_in(either_bootstrap, name, isolation_level=READ_COMMITTED) == [[b"given"] * is_commit]


def test_a_transaction_that_is_gone_cannot_be_ended(
    either_bootstrap: str, topic: Make, new_name: Name
) -> None:
    name, transactional_id = topic(), new_name("id")
    old = handed_over(either_bootstrap, name, transactional_id, b"old")
    new = handed_over(either_bootstrap, name, transactional_id, b"new")
    with Admin(either_bootstrap) as admin:
        with pytest.raises(KafkaError):
            admin.end_transaction(old, is_commit=True)
        admin.end_transaction(new, is_commit=True)
    assert values_in(either_bootstrap, name, isolation_level=READ_COMMITTED) == [[b"new"]]


def test_nothing_sent_is_nothing_to_hand_over(either_bootstrap: str, new_name: Name) -> None:
    with Producer(either_bootstrap, transactional_id=new_name("id")) as producer:
        producer.begin_transaction()
        assert producer.hand_over_transaction() is None
