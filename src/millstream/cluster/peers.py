"""Links to the other brokers of the cluster, over their listeners for brokers.

A link is one connection to one broker for one purpose, so that what waits there (a fetch for records to
come) holds up nothing else. It is made when it is first used, and again after it broke; a broker that
cannot be reached is left in peace for a moment that grows with every failure.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TypeVar

from millstream.client.connection import Connection, connect
from millstream.clock import Clock
from millstream.cluster.metadata import Endpoint, Metadata
from millstream.config.broker import BrokerConfig
from millstream.deadline import Deadline
from millstream.errors import BrokerNotAvailable, KafkaError, NetworkException
from millstream.protocol.messages import INTERNAL_REQUESTS
from millstream.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)

Place = tuple[Endpoint, int]
"""The address of a broker, and the epoch in which it is there."""

FIRST_PAUSE_S = 0.02
MAX_PAUSE_S = 1.0
MAX_CONNECT_MS = 3000.0
"""The longest that one attempt to connect is given: the next finds out sooner that a network is mended."""

COPYING = "fetch"
"""The purpose of the link that a follower copies from its leader by."""

LOST_S = 2.0
"""For how long a broker whose connection broke is taken to be gone, before the cluster says anything."""


class Link:
    """One connection to one broker, made again when it is broken."""

    def __init__(self, peers: Peers, broker_id: int, purpose: str) -> None:
        self._peers = peers
        self.broker_id = broker_id
        self._purpose = purpose
        self._connection: Connection | None = None
        self._place: Place | None = None
        self._connecting = asyncio.Lock()
        self._attempt: asyncio.Timeout | None = None
        """How an attempt to connect is cut short."""
        self._pause_s = FIRST_PAUSE_S
        self._not_before = float("-inf")
        self._lost_at: float | None = None
        self._is_over = False

    async def request(self, request: Request, answer: type[R], timeout_ms: float) -> R:
        """Ask, and await the answer; retriable errors if the broker cannot be reached."""
        deadline = Deadline(timeout_ms)
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = await self._connect(deadline)
        try:
            return await connection.request(request, answer, deadline.remaining_ms)
        except KafkaError:
            if not connection.is_open:
                self._has_lost()
            raise

    async def reach(self, timeout_ms: float) -> None:
        """Be connected; retriable errors if the broker cannot be reached."""
        if self._connection is None or not self._connection.is_open:
            await self._connect(Deadline(timeout_ms))

    async def _connect(self, deadline: Deadline) -> Connection:
        async with self._connecting:
            connection = self._connection
            if connection is not None and connection.is_open:
                return connection
            try:
                self._check_not_over()
                async with asyncio.timeout(None) as self._attempt:
                    connection = await self._connected(deadline)
            except TimeoutError:
                self._check_not_over()
                raise
            finally:
                self._attempt = None
            if self._is_over:
                connection.abort()
            self._check_not_over()
            for request in INTERNAL_REQUESTS:  # served there, and never advertised
                connection.api_versions[request.key] = request.versions
            self._pause_s = FIRST_PAUSE_S
            self._connection = connection
            self._lost_at = None
            return connection

    async def _connected(self, deadline: Deadline) -> Connection:
        peers = self._peers
        self._place = peers.place(self.broker_id)
        endpoint, _ = self._place
        wait_s = self._not_before - peers.clock.monotonic()
        if wait_s > 0:
            await asyncio.sleep(min(wait_s, deadline.remaining_ms / 1000))
        try:
            return await connect(
                endpoint.host,
                endpoint.port,
                deadline=Deadline(min(peers.connect_timeout_ms, deadline.remaining_ms)),
                client_id=f"broker-{peers.broker_id}-{self._purpose}",
            )
        except KafkaError:
            self._not_before = peers.clock.monotonic() + self._pause_s * peers.random.uniform(0.8, 1.2)
            self._pause_s = min(self._pause_s * 2, MAX_PAUSE_S)
            if self._connection is not None:
                self._has_lost()
            raise

    def _check_not_over(self) -> None:
        if self._is_over:
            raise NetworkException(f"broker {self.broker_id} has moved")

    def _has_lost(self) -> None:
        if self._lost_at is None:
            self._lost_at = self._peers.clock.monotonic()

    @property
    def is_lost(self) -> bool:
        """Whether the connection broke a moment ago while it was in use, and there is no new one yet.

        One that nobody uses is closed by the other broker in time (connections.max.idle.ms).
        """
        return self._lost_at is not None and self._peers.clock.monotonic() - self._lost_at < LOST_S

    @property
    def is_moved(self) -> bool:
        """Whether the broker is gone, or began again since this link was made."""
        try:
            return self._place is not None and self._peers.place(self.broker_id) != self._place
        except KafkaError:
            return True

    def _end(self) -> None:
        self._is_over = True
        if self._attempt is not None:
            self._attempt.reschedule(asyncio.get_running_loop().time())
            self._attempt = None

    async def close(self) -> None:
        self._end()
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def abort(self) -> None:
        """Close for good, without waiting; what is under way fails, and so does an attempt to connect."""
        self._end()
        if self._connection is not None:
            self._connection.abort()
            self._connection = None


class Peers:
    """The links of one broker, by the other's id and what they are for."""

    def __init__(self, metadata: Metadata, config: BrokerConfig, clock: Clock, random: Random) -> None:
        self._metadata = metadata
        self.broker_id: int = config.node_id
        self.connect_timeout_ms = min(MAX_CONNECT_MS, float(config["socket.connection.setup.timeout.ms"]))
        self.clock = clock
        self.random = random
        self._links: dict[tuple[int, str], Link] = {}
        self._is_closed = False

    def place(self, broker_id: int) -> Place:
        """Where a broker listens to others; BrokerNotAvailable if that is not known."""
        broker = self._metadata.brokers.get(broker_id)
        endpoint = None if broker is None else broker.peer_endpoint
        if broker is None or endpoint is None:
            raise BrokerNotAvailable(f"broker {broker_id} is not known to be alive")
        return endpoint, broker.epoch

    def link(self, broker_id: int, purpose: str) -> Link:
        """The link to a broker for a purpose, connected or not."""
        if self._is_closed:
            raise NetworkException("this broker is stopping")
        found = self._links.get((broker_id, purpose))
        if found is None:
            found = self._links[broker_id, purpose] = Link(self, broker_id, purpose)
        return found

    async def request(
        self, broker_id: int, purpose: str, request: Request, answer: type[R], timeout_ms: float
    ) -> R:
        """Ask a broker, which may be this one, and await its answer."""
        return await self.link(broker_id, purpose).request(request, answer, timeout_ms)

    def cut(self, broker_id: int, purpose: str) -> None:
        """Close a link, and with it what is under way there; the next use makes another."""
        link = self._links.pop((broker_id, purpose), None)
        if link is not None:
            link.abort()

    def is_lost(self, broker_id: int) -> bool:
        """Whether a broker that this one copies from went away a moment ago.

        The controller will hear of it soon. Until then clients need not be sent there.
        """
        link = self._links.get((broker_id, COPYING))
        return link is not None and link.is_lost

    def brokers_changed(self) -> None:
        """Let go of links to brokers that left or moved: what is asked of them will not be answered."""
        for key, link in list(self._links.items()):
            if link.is_moved:
                link.abort()
                del self._links[key]

    async def close(self) -> None:
        self._is_closed = True
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()
