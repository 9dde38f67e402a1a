"""What a broker logs, changed while it runs: the resource BROKER_LOGGER of the config requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import Admin
from millstream.protocol.messages import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)
from tests.conftest import Name
from tests.processes import BrokerProcess
from tests.wire import Wire

INVALID_CONFIG, INVALID_REQUEST = 40, 42
BROKER, BROKER_LOGGER = 4, 8
SET, DELETE, APPEND = 0, 1, 2
FROM_LOGGERS = 6


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection


@pytest.fixture
def node(wire: Wire) -> str:
    return str(wire.ask(MetadataRequest(topics=[]), 12).brokers[0].node_id)


def levels(wire: Wire, node: str) -> dict[str, str]:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER_LOGGER, resource_name=node, configuration_keys=None
    )
    (result,) = wire.ask(DescribeConfigsRequest(resources=[resource]), 4).results
    assert result.error_code == 0, result.error_message
    assert all(config.config_source == FROM_LOGGERS and not config.read_only for config in result.configs)
    return {config.name: config.value for config in result.configs}


def change(
    name: str, *changes: tuple[str, int, str | None], kind: int = BROKER_LOGGER
) -> IncrementalAlterConfigsRequest.AlterConfigsResource:
    return IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )


def alter(wire: Wire, *changes: tuple[str, int, str | None], node: str, validate_only: bool = False) -> int:
    request = IncrementalAlterConfigsRequest(resources=[change(node, *changes)], validate_only=validate_only)
    (answer,) = wire.ask(request, 1).responses
    return int(answer.error_code)


def test_levels_are_told_and_set(wire: Wire, node: str) -> None:
    before = levels(wire, node)["root"]
    try:
        assert alter(wire, ("root", SET, "ERROR"), node=node, validate_only=True) == 0
        assert levels(wire, node)["root"] == before
        assert alter(wire, ("root", SET, "ERROR"), node=node) == 0
        assert levels(wire, node)["root"] == "ERROR"
    finally:
        assert alter(wire, ("root", SET, before), node=node) == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("no.such.Logger", SET, "INFO")], INVALID_CONFIG),
        ([("root", SET, "LOUD")], INVALID_CONFIG),
        ([("root", SET, "ERROR"), ("no.such.Logger", SET, "INFO")], INVALID_CONFIG),
        ([("root", DELETE, None)], INVALID_REQUEST),
        ([("root", APPEND, "INFO")], INVALID_REQUEST),
        ([("root", SET, "INFO"), ("root", SET, "WARN")], INVALID_REQUEST),
    ],
)
def test_wrong_changes_change_nothing(
    wire: Wire, node: str, changes: list[tuple[str, int, str | None]], code: int
) -> None:
    before = levels(wire, node)
    assert alter(wire, *changes, node=node) == code
    assert levels(wire, node) == before


def test_another_broker_and_the_old_request_are_refused(wire: Wire, node: str) -> None:
    assert alter(wire, ("root", SET, "INFO"), node=f"{int(node) + 1}") == INVALID_REQUEST
    assert alter(wire, ("root", SET, "INFO"), node="") == INVALID_REQUEST
    other = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER_LOGGER, resource_name="77", configuration_keys=None
    )
    (result,) = wire.ask(DescribeConfigsRequest(resources=[other]), 4).results
    assert result.error_code == INVALID_REQUEST
    old = AlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER_LOGGER,
        resource_name=node,
        configs=[AlterConfigsRequest.AlterableConfig(name="root", value="INFO")],
    )
    (answer,) = wire.ask(AlterConfigsRequest(resources=[old], validate_only=False), 2).responses
    assert answer.error_code == INVALID_REQUEST


def test_loggers_and_the_brokers_own_keys_in_one_request(wire: Wire, node: str) -> None:
    before = levels(wire, node)["root"]
    request = IncrementalAlterConfigsRequest(
        resources=[
            change(node, ("root", SET, "WARN")),
            change(node, ("log.cleaner.backoff.ms", SET, "-5"), kind=BROKER),
        ],
        validate_only=False,
    )
    codes = {answer.resource_type: answer.error_code for answer in wire.ask(request, 1).responses}
    try:
        assert codes[BROKER_LOGGER] == 0
        assert codes[BROKER] != 0
        assert levels(wire, node)["root"] == "WARN"
    finally:
        alter(wire, ("root", SET, before), node=node)


def test_what_is_logged_follows(tmp_path: Path, new_name: Name) -> None:
    quiet, loud = new_name("quiet"), new_name("loud")
    package = "millstream.controller"
    with BrokerProcess(tmp_path / "data") as broker, Admin(broker.bootstrap) as admin:
        assert admin.describe_config("logger", "1")[package].value == "WARN"
        admin.alter_config("logger", "1", values={package: "info"})
        found = admin.describe_config("logger", "1")
        assert found[package].value == found[f"{package}.topic_changes"].value == "INFO"
        admin.create_topic(loud)
        admin.alter_config("logger", "1", delete=[package])
        admin.create_topic(quiet)
        assert f"created the topic {loud}" in broker.output
        assert f"created the topic {quiet}" not in broker.output
