"""A member's way to the coordinator of its group, found again when it has moved."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from millstream.client.cluster import BACKOFF_MS, Cluster
from millstream.client.coordinators import coordinator_of
from millstream.deadline import Deadline
from millstream.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    NetworkException,
    NotCoordinator,
    RequestTimedOut,
)
from millstream.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)

PASSING = (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NetworkException,
    NotCoordinator,
    RequestTimedOut,
)
"""After these the coordinator is looked for again."""


class CoordinatorLink:
    """Requests to the coordinator, over a connection that no Fetch holds up."""

    def __init__(self, cluster: Cluster, group: str, request_timeout_ms: int) -> None:
        self.cluster = cluster
        self.group = group
        self.request_timeout_ms = request_timeout_ms
        self._node = -1

    async def ask(
        self,
        request: Request,
        answer: type[R],
        *,
        timeout_ms: float | None = None,
        max_version: int | None = None,
    ) -> R:
        """Ask once, of the coordinator as far as it is known."""
        deadline = Deadline(timeout_ms or self.request_timeout_ms)
        try:
            if self._node < 0:
                self._node = await coordinator_of(self.cluster, self.group, deadline)
            connection = await self.cluster.connection(self._node, deadline)
            return await connection.request(
                request, answer, deadline.remaining_ms or 1, max_version=max_version
            )
        except KafkaError:
            self.forget()
            raise

    def forget(self) -> None:
        """The coordinator has moved."""
        self._node = -1
        self.cluster.doubt()

    async def hang_up(self) -> None:
        """Close a connection on which answers are still awaited: others would wait behind them."""
        connection = self.cluster.open_connection(self._node)
        if connection is not None and connection.in_flight:
            await connection.close()

    async def pause(self) -> None:
        """Between two tries."""
        await asyncio.sleep(BACKOFF_MS * 2 / 1000)
