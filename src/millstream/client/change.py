"""A change that is tried until it is done, and of which a try may have been done though it failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from millstream.client.cluster import Cluster
from millstream.deadline import Deadline
from millstream.errors import NetworkException, RequestTimedOut
from millstream.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)


class Change:
    """Remembers whether an earlier try may have been done: it was sent, and its answer was lost or said that
    the broker could not wait for the end. What says that it is done already is then the answer to that try.
    """

    def __init__(self, cluster: Cluster, deadline: Deadline) -> None:
        self._cluster = cluster
        self._deadline = deadline
        self.may_be_done = False

    async def ask(
        self, node_id: int, request: Request, answer: type[R], code_of: Callable[[R], int]
    ) -> tuple[R, int]:
        """Ask once; the answer, and the error code that `code_of` finds in it."""
        await self._cluster.connection(node_id, self._deadline)  # where that fails, nobody was asked
        try:
            response = await self._cluster.request(node_id, request, answer, self._deadline)
        except (NetworkException, RequestTimedOut):
            self.may_be_done = True
            raise
        code = code_of(response)
        if code == RequestTimedOut.code:
            self.may_be_done = True
        return response, code
