"""Set, delete, append, subtract (KIP-339)."""

from __future__ import annotations

import pytest

from millstream.config.alter import AlterOp, Op, altered
from millstream.config.broker import BrokerConfig
from millstream.config.broker_keys import BROKER_KEYS
from millstream.config.topic import TOPIC_KEYS
from millstream.errors import InvalidConfig, InvalidRequest, KafkaError

BROKER = BrokerConfig({"log.cleanup.policy": "compact"})


def topic(texts: dict[str, str], *ops: AlterOp) -> dict[str, str]:
    before = dict(texts)
    result = altered(texts, ops, TOPIC_KEYS, lambda name: BROKER.topic_default(name)[0])
    assert texts == before
    return result


def test_set_and_delete() -> None:
    assert topic({}, AlterOp("retention.ms", Op.SET, "5")) == {"retention.ms": "5"}
    assert topic({"retention.ms": "5"}, AlterOp("retention.ms", Op.SET, "6")) == {"retention.ms": "6"}
    assert topic({"retention.ms": "5"}, AlterOp("retention.ms", Op.DELETE, None)) == {}
    assert topic({}, AlterOp("retention.ms", Op.DELETE, "whatever")) == {}


def test_lists_grow_and_shrink() -> None:
    name = "follower.replication.throttled.replicas"
    assert topic({}, AlterOp(name, Op.APPEND, "0:1,1:1")) == {name: "0:1,1:1"}
    assert topic({name: "0:1"}, AlterOp(name, Op.APPEND, "1:1, 0:1")) == {name: "0:1,1:1"}
    assert topic({name: "0:1,1:1,2:1"}, AlterOp(name, Op.SUBTRACT, "1:1,9:9")) == {name: "0:1,2:1"}
    assert topic({name: "0:1"}, AlterOp(name, Op.SUBTRACT, "0:1")) == {name: ""}


def test_a_list_that_is_not_set_begins_with_what_holds() -> None:
    assert topic({}, AlterOp("cleanup.policy", Op.APPEND, "delete")) == {"cleanup.policy": "compact,delete"}
    assert topic({}, AlterOp("cleanup.policy", Op.SUBTRACT, "compact")) == {"cleanup.policy": ""}
    ops = [AlterOp("log.cleanup.policy", Op.APPEND, "delete")]
    assert altered({}, ops, BROKER_KEYS, BROKER.inherited) == {"log.cleanup.policy": "compact,delete"}


def test_keys_of_one_listener_can_be_altered() -> None:
    name = "listener.name.plaintext.ssl.enabled.protocols"
    ops = [AlterOp(name, Op.APPEND, "TLSv1.3")]
    assert altered({}, ops, BROKER_KEYS, BROKER.inherited) == {name: "TLSv1.3"}


@pytest.mark.parametrize(
    ("ops", "error"),
    [
        ([AlterOp("retention.ms", Op.SET, None)], InvalidRequest),
        ([AlterOp("retention.ms", Op.APPEND, "5")], InvalidConfig),
        ([AlterOp("retention.ms", Op.SUBTRACT, "5")], InvalidConfig),
        ([AlterOp("retention.ms", 4, "5")], InvalidRequest),
        ([AlterOp("retention.ms", Op.SET, "5"), AlterOp("retention.ms", Op.DELETE, None)], InvalidRequest),
        ([AlterOp("retention.seconds", Op.SET, "5")], InvalidConfig),
        ([AlterOp("message.format.version", Op.SET, "2.0")], InvalidConfig),
        ([AlterOp("num.partitions", Op.SET, "2")], InvalidConfig),
    ],
)
def test_what_cannot_be_altered_is_refused(ops: list[AlterOp], error: type[KafkaError]) -> None:
    with pytest.raises(error):
        topic({"segment.bytes": "2000000"}, *ops)


def test_a_stored_value_that_is_no_longer_valid_can_be_replaced() -> None:
    assert topic({"cleanup.policy": "old"}, AlterOp("cleanup.policy", Op.SET, "delete")) == {
        "cleanup.policy": "delete"
    }
    assert topic({"cleanup.policy": "old"}, AlterOp("cleanup.policy", Op.DELETE, None)) == {}
    assert topic({"cleanup.policy": "old,delete"}, AlterOp("cleanup.policy", Op.SUBTRACT, "old")) == {
        "cleanup.policy": "delete"
    }
