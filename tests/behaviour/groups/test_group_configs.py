"""What groups set for themselves: told, altered, refused as Kafka does, kept, and gone by."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from millstream.protocol.messages import (
    AlterConfigsRequest,
    ConsumerGroupHeartbeatRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from tests.behaviour.groups.steps import find
from tests.conftest import Name
from tests.processes import BrokerProcess
from tests.wire import Wire

GROUP = 32
INVALID_CONFIG, INVALID_REQUEST = 40, 42
OF_GROUP, DEFAULT = 8, 5
SESSION, HEARTBEAT, ASSIGNMENT = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)
SET, DELETE, APPEND = 0, 1, 2


def described(wire: Wire, group: str, *names: str) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=GROUP, resource_name=group, configuration_keys=list(names) or None
    )
    (result,) = wire.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True)).results
    return result


def value(wire: Wire, group: str, name: str) -> tuple[str | None, int]:
    (config,) = described(wire, group, name).configs
    return config.value, config.config_source


def alter(wire: Wire, group: str, *ops: tuple[str, int, str | None], validate_only: bool = False) -> int:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=GROUP,
        resource_name=group,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=op, value=text)
            for name, op, text in ops
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    code: int = wire.ask(request).responses[0].error_code
    return code


def heartbeat_interval_ms(wire: Wire, group: str) -> int:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="a",
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    deadline = time.monotonic() + 20
    while True:
        answer = wire.ask(request)
        if not answer.error_code:
            interval_ms: int = answer.heartbeat_interval_ms
            return interval_ms
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_group_is_told_the_brokers_values(wire: Wire, new_name: Name) -> None:
    group = new_name("group")
    configs = {config.name: config for config in described(wire, group).configs}
    assert {SESSION, HEARTBEAT, ASSIGNMENT} <= configs.keys()
    session = configs[SESSION]
    assert (session.value, session.config_source, session.read_only, session.config_type) == (
        "45000",
        DEFAULT,
        False,
        3,
    )
    assert [(each.name, each.value, each.source) for each in session.synonyms] == [
        ("group.consumer.session.timeout.ms", "45000", DEFAULT)
    ]


def test_a_group_sets_its_own(wire: Wire, new_name: Name) -> None:
    group = new_name("group")
    assert alter(wire, group, (HEARTBEAT, SET, "9000"), validate_only=True) == 0
    assert value(wire, group, HEARTBEAT) == ("5000", DEFAULT)
    assert alter(wire, group, (HEARTBEAT, SET, "9000"), (SESSION, SET, "50000")) == 0
    assert value(wire, group, HEARTBEAT) == ("9000", OF_GROUP)
    assert value(wire, group, SESSION) == ("50000", OF_GROUP)
    assert value(wire, new_name("other"), SESSION) == ("45000", DEFAULT)
    assert alter(wire, group, (SESSION, DELETE, None)) == 0
    assert value(wire, group, SESSION) == ("45000", DEFAULT)
    find(wire, group)
    assert heartbeat_interval_ms(wire, group) == 9000
    assert alter(wire, group, (HEARTBEAT, SET, "8000")) == 0
    assert heartbeat_interval_ms(wire, group) == 8000
    resource = AlterConfigsRequest.AlterConfigsResource(
        resource_type=GROUP,
        resource_name=group,
        configs=[AlterConfigsRequest.AlterableConfig(name=SESSION, value="46000")],
    )
    replaced = wire.ask(AlterConfigsRequest(resources=[resource], validate_only=False))
    assert replaced.responses[0].error_code == 0
    assert value(wire, group, SESSION) == ("46000", OF_GROUP)
    assert value(wire, group, HEARTBEAT) == ("5000", DEFAULT)


def test_what_a_group_may_not_set(wire: Wire, new_name: Name) -> None:
    group = new_name("group")
    for name, op, text in (
        (SESSION, SET, "5"),
        (SESSION, SET, "60001"),
        (SESSION, SET, "x"),
        (HEARTBEAT, SET, "60000"),
        (SESSION, APPEND, "50000"),
        ("nothing", SET, "5"),
    ):
        assert alter(wire, group, (name, op, text)) == INVALID_CONFIG, (name, text)
    assert alter(wire, "", (SESSION, SET, "50000")) == INVALID_REQUEST
    assert described(wire, "").error_code == INVALID_REQUEST
    assert value(wire, group, SESSION) == ("45000", DEFAULT)


def test_a_restart_keeps_what_groups_set(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process().start()
    odd = "a/b %41 ..\tc"
    with Wire(broker.bootstrap) as wire:
        find(wire, odd)
        for group in (odd, "."):
            assert alter(wire, group, (HEARTBEAT, SET, "7000")) == 0
    broker.kill()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert heartbeat_interval_ms(wire, odd) == 7000
        assert value(wire, odd, HEARTBEAT) == value(wire, ".", HEARTBEAT) == ("7000", OF_GROUP)
