"""Which broker looks after a group or a transactional id, found again when it has moved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from millstream.client.cluster import Cluster
from millstream.client.errors import raise_for
from millstream.deadline import Deadline
from millstream.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse

GROUP = 0
TRANSACTION = 1
ONE_KEY_UNTIL = 3

T = TypeVar("T")


async def coordinator_of(cluster: Cluster, key: str, deadline: Deadline, *, key_type: int = GROUP) -> int:
    """The broker that coordinates a group, or a transactional id, asked for once."""
    request = FindCoordinatorRequest(coordinator_key=key, key_type=key_type, coordinator_keys=[key])
    response = await cluster.request(
        None, request, FindCoordinatorResponse, deadline, max_version=ONE_KEY_UNTIL
    )
    raise_for(response.error_code, response.error_message, f"the coordinator of {key}")
    if response.node_id not in cluster.metadata.nodes:
        await cluster.refresh([], deadline)
    return response.node_id


async def with_coordinator(
    cluster: Cluster,
    key: str,
    attempt: Callable[[int], Awaitable[T]],
    deadline: Deadline,
    *,
    key_type: int = GROUP,
) -> T:
    """Ask a coordinator, and again wherever it is, until it answers or the deadline passes."""

    async def find_and_ask() -> T:
        return await attempt(await coordinator_of(cluster, key, deadline, key_type=key_type))

    return await cluster.retrying(find_and_ask, deadline)
