"""Configurations of topics and brokers: describe them and change single keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from millstream.client.cluster import UNKNOWN_TOPIC_WAIT_MS, Cluster
from millstream.client.errors import raise_for
from millstream.deadline import Deadline
from millstream.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class Resource(IntEnum):
    """What a configuration belongs to."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32


class Change(IntEnum):
    """What to do with one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


SOURCES = {
    0: "unknown",
    1: "topic",
    2: "dynamic broker",
    3: "dynamic default broker",
    4: "static broker",
    5: "default",
    6: "dynamic broker logger",
    7: "client metrics",
    8: "group",
}
KINDS = {
    0: "unknown",
    1: "boolean",
    2: "string",
    3: "int",
    4: "short",
    5: "long",
    6: "double",
    7: "list",
    8: "class",
    9: "password",
}


@dataclass(frozen=True, slots=True)
class Config:
    """One key of a topic or broker, where its value comes from, and what it means."""

    name: str
    value: str | None
    source: str
    kind: str
    is_read_only: bool
    is_sensitive: bool
    doc: str | None

    @property
    def is_default(self) -> bool:
        return self.source == "default"


async def topic_values(
    cluster: Cluster, topics: Sequence[str], key: str, deadline: Deadline, *, first_asked: int | None = None
) -> dict[str, str | None]:
    """The value of one key for many topics at once; topics that are gone are left out.

    Any broker is asked, but `first_asked` before.
    """
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=Resource.TOPIC, resource_name=name, configuration_keys=[key]
            )
            for name in topics
        ]
    )

    async def attempt() -> dict[str, str | None]:
        nonlocal first_asked
        asked, first_asked = first_asked, None
        response = await cluster.request(asked, request, DescribeConfigsResponse, deadline)
        return {
            result.resource_name: result.configs[0].value
            for result in response.results
            if not result.error_code and result.configs
        }

    return await cluster.retrying(attempt, deadline) if topics else {}


async def describe_configs(
    cluster: Cluster,
    resource: Resource,
    name: str,
    deadline: Deadline,
    *,
    keys: Sequence[str] | None = None,
) -> list[Config]:
    """The configuration of one topic or broker, by key; all keys, where none are named."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=resource, resource_name=name, configuration_keys=list(keys) if keys else None
            )
        ],
        include_documentation=True,
    )

    async def attempt() -> list[Config]:
        response = await cluster.request(_owner(resource, name), request, DescribeConfigsResponse, deadline)
        result = response.results[0]
        raise_for(result.error_code, result.error_message, f"{resource.name.lower()} {name}")
        return [
            Config(
                entry.name,
                entry.value,
                SOURCES.get(entry.config_source, "unknown"),
                KINDS.get(entry.config_type, "unknown"),
                entry.read_only,
                entry.is_sensitive,
                entry.documentation,
            )
            for entry in sorted(result.configs, key=lambda entry: entry.name)
        ]

    await cluster.refresh([], deadline)
    return await cluster.retrying(attempt, deadline, unknown_topic_wait_ms=UNKNOWN_TOPIC_WAIT_MS)


async def alter_configs(
    cluster: Cluster,
    resource: Resource,
    name: str,
    changes: Sequence[tuple[str, Change, str | None]],
    deadline: Deadline,
    *,
    validate_only: bool = False,
) -> None:
    """Change single keys, all or none of them."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=resource,
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(
                        name=key, config_operation=change, value=value
                    )
                    for key, change, value in changes
                ],
            )
        ],
        validate_only=validate_only,
    )

    async def attempt() -> None:
        node_id = _owner(resource, name)
        if node_id is None:
            node_id = await cluster.controller(deadline)
        response = await cluster.request(node_id, request, IncrementalAlterConfigsResponse, deadline)
        answer = response.responses[0]
        raise_for(answer.error_code, answer.error_message, f"{resource.name.lower()} {name}")

    await cluster.refresh([], deadline)
    await cluster.retrying(attempt, deadline, unknown_topic_wait_ms=UNKNOWN_TOPIC_WAIT_MS)


def _owner(resource: Resource, name: str) -> int | None:
    """A broker's configuration is asked of that broker; a topic's of any."""
    return int(name) if resource in (Resource.BROKER, Resource.BROKER_LOGGER) and name else None
