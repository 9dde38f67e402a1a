"""Runs one command's coroutine with a cluster, on uvloop where it is installed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from millstream.cli.options import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP
from millstream.client.admin import AsyncAdmin
from millstream.client.cluster import Cluster
from millstream.deadline import Deadline
from millstream.errors import MillstreamError
from millstream.net.event_loop import loop_factory

T = TypeVar("T")

CLIENT_ID = "millstream-cli"
COMPLETION_TIMEOUT_MS = 1000


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on an event loop of its own; Ctrl-C cancels it and is raised again."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def with_cluster(bootstrap: str, timeout_ms: float, work: Callable[[Cluster, Deadline], Awaitable[T]]) -> T:
    """Run `work` with a cluster and a deadline; the cluster's connections are closed in the end."""

    async def main() -> T:
        async with Cluster(bootstrap, client_id=CLIENT_ID, must_answer_at_once=True) as cluster:
            return await work(cluster, Deadline(timeout_ms))

    return run(main())


def with_admin(bootstrap: str, timeout_ms: float, work: Callable[[AsyncAdmin, Deadline], Awaitable[T]]) -> T:
    """Run `work` with an admin of a cluster that answers, and a deadline for all of it."""

    async def main() -> T:
        async with admin_of(bootstrap) as admin:
            return await work(admin, Deadline(timeout_ms))

    return run(main())


def admin_of(bootstrap: str) -> AsyncAdmin:
    """For a person who waits: an address at which nobody answers is an error at once."""
    return AsyncAdmin(bootstrap, client_id=CLIENT_ID, must_answer_at_once=True)


def topic_names(bootstrap: str | None) -> list[str]:
    """All topics, for shell completion: quickly or not at all."""

    async def names(admin: AsyncAdmin, deadline: Deadline) -> list[str]:
        return await admin.list_topics(with_internal=True, timeout=deadline.remaining)

    return _completed(bootstrap, names)


def group_names(bootstrap: str | None) -> list[str]:
    """All groups, for shell completion."""

    async def names(admin: AsyncAdmin, deadline: Deadline) -> list[str]:
        return [group.name for group in await admin.list_groups(timeout=deadline.remaining)]

    return _completed(bootstrap, names)


def transactional_ids(bootstrap: str | None) -> list[str]:
    """All transactional ids, for shell completion."""

    async def names(admin: AsyncAdmin, deadline: Deadline) -> list[str]:
        return [each.transactional_id for each in await admin.list_transactions(timeout=deadline.remaining)]

    return _completed(bootstrap, names)


def _completed(
    bootstrap: str | None, names: Callable[[AsyncAdmin, Deadline], Awaitable[list[str]]]
) -> list[str]:
    address = bootstrap or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    try:
        return with_admin(address, COMPLETION_TIMEOUT_MS, names)
    except MillstreamError:
        return []
