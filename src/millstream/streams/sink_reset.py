"""Ends what a query's sink has left in the cluster, by hand or when an app is stopped or reset."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from millstream.client.cluster import Cluster
from millstream.deadline import Deadline
from millstream.streams.sink_commit import end_all, finish, open_attempts
from millstream.streams.sink_decisions import Owner, forget, last_decision
from millstream.streams.sink_errors import TornBatch

TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class SinkState:
    """What was found and done: the last batch that is in the output, whether its commit had to be finished,
    whether it is torn, and how many open transactions were aborted. `last_batch` None: nothing was ever
    decided.
    """

    last_batch: int | None
    was_finished: bool
    is_torn: bool
    aborted: int


def settle_sink(bootstrap: str, query_id: str, timeout: float = TIMEOUT_MS / 1000) -> SinkState:
    """Finish the decided batch of a query that is stopped, and abort its open transactions.

    Without it readers of committed records wait for what a killed query left open, until the query runs again
    or the brokers' transaction.max.timeout.ms is over. A query that still runs is shut out and fails.
    """
    return _apart(_settle(bootstrap, query_id, timeout * 1000, forgets=False))


def reset_sink(bootstrap: str, query_id: str, timeout: float = TIMEOUT_MS / 1000) -> SinkState:
    """As `settle_sink`; then forget the query's decisions, so that it may start over from the beginning.

    What it has written stays in its topics.
    """
    return _apart(_settle(bootstrap, query_id, timeout * 1000, forgets=True))


def _apart(work: Coroutine[Any, Any, SinkState]) -> SinkState:
    """On a thread of its own: that of a notebook has an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _settle(bootstrap: str, query: str, timeout_ms: float, *, forgets: bool) -> SinkState:
    async with Cluster(bootstrap) as cluster:
        deadline = Deadline(timeout_ms)
        last = await last_decision(cluster, query, deadline)
        was_undone = is_torn = False
        if last is not None or await open_attempts(cluster, query, deadline):
            async with Owner(cluster, bootstrap, query, deadline) as owner:
                last = owner.last
                was_undone = last is not None and not last.is_done
                try:
                    await finish(cluster, owner, deadline)
                except TornBatch:
                    is_torn = True
                still_open = await open_attempts(cluster, query, deadline)
                await end_all(cluster, still_open, deadline, is_commit=False)
        else:
            still_open = []
        if forgets:
            await forget(cluster, query, deadline)
        return SinkState(
            None if last is None else last.batch, was_undone and not is_torn, is_torn, len(still_open)
        )
