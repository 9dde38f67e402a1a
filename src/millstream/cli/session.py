"""Runs one command's coroutine with a cluster, on uvloop where it is installed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from millstream.cli.options import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP
from millstream.client.cluster import Cluster
from millstream.client.deadline import Deadline
from millstream.errors import MillstreamError

T = TypeVar("T")

COMPLETION_TIMEOUT_MS = 1000


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on an event loop of its own; Ctrl-C cancels it and is raised again."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, or the standard one where uvloop does not exist."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def with_cluster(bootstrap: str, timeout_ms: float, work: Callable[[Cluster, Deadline], Awaitable[T]]) -> T:
    """Run `work` with a cluster and a deadline; the cluster's connections are closed in the end."""

    async def main() -> T:
        async with Cluster(bootstrap, client_id="millstream-cli", must_answer_at_once=True) as cluster:
            return await work(cluster, Deadline(timeout_ms))

    return run(main())


def topic_names(bootstrap: str | None) -> list[str]:
    """All topics, for shell completion: quickly or not at all."""

    async def names(cluster: Cluster, deadline: Deadline) -> list[str]:
        metadata = await cluster.refresh(None, deadline)
        return sorted(metadata.topics)

    return _completed(bootstrap, names)


def group_names(bootstrap: str | None) -> list[str]:
    """All groups, for shell completion."""
    from millstream.client.groups import list_groups

    async def names(cluster: Cluster, deadline: Deadline) -> list[str]:
        return [group.name for group in await list_groups(cluster, deadline)]

    return _completed(bootstrap, names)


def transactional_ids(bootstrap: str | None) -> list[str]:
    """All transactional ids, for shell completion."""
    from millstream.client.transactions import list_transactions

    async def names(cluster: Cluster, deadline: Deadline) -> list[str]:
        return [each.transactional_id for each in await list_transactions(cluster, deadline)]

    return _completed(bootstrap, names)


def _completed(
    bootstrap: str | None, names: Callable[[Cluster, Deadline], Awaitable[list[str]]]
) -> list[str]:
    address = bootstrap or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    try:
        return with_cluster(address, COMPLETION_TIMEOUT_MS, names)
    except MillstreamError:
        return []
