"""A client's way to a cluster: bootstrap, metadata, one connection per broker, retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from types import TracebackType
from typing import TypeVar

from millstream.client.connection import Connection, connect
from millstream.client.errors import NoSuchTopic, Unreachable, raise_for
from millstream.client.face import Closed
from millstream.client.metadata import Metadata, Node, Topic
from millstream.deadline import Deadline
from millstream.errors import (
    KafkaError,
    LeaderNotAvailable,
    MillstreamError,
    NetworkException,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from millstream.protocol.messages import MetadataRequest, MetadataResponse
from millstream.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)
T = TypeVar("T")
OnRetry = Callable[[KafkaError], object]
"""Is told of each error after which there is another try."""

DEFAULT_PORT = 9092
NO_CONTROLLER = -1
METADATA_MAX_AGE_MS = 300_000
BACKOFF_MS = 50
MAX_BACKOFF_MS = 1000
UNKNOWN_TOPIC_WAIT_MS = 300
CONNECT_TIMEOUT_MS = 5_000
REQUEST_TIMEOUT_MS = 10_000


def parse_bootstrap(text: str | Iterable[str]) -> list[tuple[str, int]]:
    """`host:port,host` or a list of such as (host, port) pairs; IPv6 hosts stand in brackets."""
    parts = text.split(",") if isinstance(text, str) else list(text)
    pairs = [_host_and_port(part.strip()) for part in parts if part.strip()]
    if not pairs:
        raise MillstreamError("no bootstrap address was given: write HOST:PORT, such as localhost:9092")
    return pairs


def _host_and_port(address: str) -> tuple[str, int]:
    address = address.rpartition("://")[2]
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(DEFAULT_PORT)
    if not port.isdecimal() or not 0 < int(port) < 65536 or not host.strip("[]"):
        raise MillstreamError(f"{address!r} is not an address: write HOST:PORT, such as localhost:9092")
    return host.strip("[]"), int(port)


class Cluster:
    """Connections to the brokers of one cluster and what is known of its topics.

    Belongs to one event loop. Every wait ends by the deadline that the caller gave. A single try
    ends sooner, after `request_timeout_ms`, so that a broker that has fallen silent does not use up
    the time in which another try would succeed.

    A broker that is cut off from the others goes on telling what it knew. So after something that did not
    come true, or did not work, what any broker can be asked is asked of another one, to which a connection is
    opened in the background.

    With `must_answer_at_once` an unreachable cluster is an error after the first try, for a person
    who waits; without it, reaching the cluster is retried until the deadline like everything else.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "millstream",
        must_answer_at_once: bool = False,
        request_timeout_ms: float = REQUEST_TIMEOUT_MS,
        random: Random | None = None,
    ) -> None:
        self.bootstrap = parse_bootstrap(bootstrap)
        self.client_id = client_id
        self.metadata = Metadata()
        self._request_timeout_ms = request_timeout_ms
        self._must_answer_at_once = must_answer_at_once
        self._was_reached = False
        self._is_closed = False
        self._random = random or Random()  # noqa: S311 - spreads retries, keeps no secret
        self._connections: dict[tuple[str, int], asyncio.Task[Connection]] = {}
        self._refreshed_at: dict[str, float] = {}
        self._mistrusted_at: dict[int, float] = {}
        self._source: tuple[str, int] | None = None
        self._doubted: tuple[str, int] | None = None

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; what still waits for an answer fails, and nothing is tried again."""
        self._is_closed = True
        tasks = list(self._connections.values())
        self._connections.clear()
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Connection):
                await result.close()

    def abandon(self) -> None:
        """Close every connection without waiting, from any thread: whoever had them is gone."""
        self._is_closed = True
        for task in self._connections.values():
            loop = task.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_abandon, task)

    # ---------------------------------------------------------------- connections

    async def connection(self, node_id: int, deadline: Deadline) -> Connection:
        """The connection to a broker, opened at the first use and again after it was lost."""
        node = self.metadata.nodes.get(node_id)
        if node is None:
            raise LeaderNotAvailable(f"broker {node_id} is not part of the cluster at the moment")
        try:
            return await self._connect(node.host, node.port, deadline)
        except (NetworkException, RequestTimedOut):
            self._mistrust(node_id)
            raise

    def _mistrust(self, node_id: int | None) -> None:
        """A broker does not answer: others may control, and lead, what it did by now."""
        if node_id is None:
            return
        self._mistrusted_at[node_id] = asyncio.get_running_loop().time()
        if node_id == self.metadata.controller_id:
            self.metadata.controller_id = NO_CONTROLLER

    def open_connection(self, node_id: int) -> Connection | None:
        """The connection to a broker if it is open now: for callers that do not wait."""
        node = self.metadata.nodes.get(node_id)
        task = self._connections.get((node.host, node.port)) if node is not None else None
        return task.result() if task is not None and task.done() and _is_open(task) else None

    def hang_up(self, node_id: int) -> None:
        """Close the connection to a broker that was found to be silent on another one."""
        connection = self.open_connection(node_id)
        if connection is not None:
            connection.abort()

    async def any_connection(self, deadline: Deadline) -> Connection:
        """A connection to any broker: one that is open, else a known broker, else a bootstrap address."""
        found = {
            address: task.result()
            for address, task in self._connections.items()
            if task.done() and _is_open(task)
        }
        doubted, self._doubted = self._doubted, None
        if doubted is not None:
            self._open_another()
            others = [address for address in found if address != doubted]
            if others:
                self._source = others[self._random.randrange(len(others))]
        if self._source not in found:
            self._source = next(iter(found), None)
        if self._source is not None:  # the same one again: another may not know yet what this one has told
            return found[self._source]
        known = [(node.host, node.port) for node in self.metadata.nodes.values()]
        self._random.shuffle(known)
        failures: list[str] = []
        for host, port in dict.fromkeys([*known, *self.bootstrap]):
            try:
                connection = await self._connect(host, port, deadline)
            except (NetworkException, RequestTimedOut) as error:
                failures.append(error.message)
                continue
            self._was_reached = True
            self._source = host, port
            return connection
        raise Unreachable("; ".join(failures))

    def doubt(self) -> None:
        """What the broker that was asked last has said is not so: ask another one the next time."""
        self._doubted = self._source

    def _open_another(self) -> None:
        """Begin to connect to a known broker to which there is no connection, if there is one."""
        addresses = [(node.host, node.port) for node in self.metadata.nodes.values()]
        new = [address for address in addresses if self._is_unconnected(address)]
        if new and not self._is_closed:
            self._begin(*new[self._random.randrange(len(new))], Deadline(CONNECT_TIMEOUT_MS))

    def _is_unconnected(self, address: tuple[str, int]) -> bool:
        task = self._connections.get(address)
        return task is None or (task.done() and not _is_open(task))

    def _begin(self, host: str, port: int, deadline: Deadline) -> asyncio.Task[Connection]:
        within = deadline.sooner(CONNECT_TIMEOUT_MS)
        task = asyncio.ensure_future(connect(host, port, deadline=within, client_id=self.client_id))
        task.add_done_callback(_take_exception)
        self._connections[host, port] = task
        return task

    async def _connect(self, host: str, port: int, deadline: Deadline) -> Connection:
        """Callers that ask at the same time share one attempt, each waiting by its own deadline."""
        if self._is_closed:
            raise Closed("the client is closed")
        is_new = self._is_unconnected((host, port))
        task = self._begin(host, port, deadline) if is_new else self._connections[host, port]
        if not task.done():
            await asyncio.wait([task], timeout=deadline.remaining_ms / 1000)
        if not task.done():
            raise NetworkException(f"no connection to {host}:{port} in {deadline.timeout_ms:.0f} ms")
        if task.cancelled():
            raise NetworkException(f"the client closed before it was connected to {host}:{port}")
        return task.result()

    # ---------------------------------------------------------------- requests

    async def request(
        self,
        node_id: int | None,
        request: Request,
        answer: type[R],
        deadline: Deadline,
        *,
        max_version: int | None = None,
    ) -> R:
        """Ask one broker (any, where `node_id` is None) once."""
        try:
            connection = (
                await self.any_connection(deadline)
                if node_id is None
                else await self.connection(node_id, deadline)
            )
            return await connection.request(
                request, answer, self.try_timeout_ms(deadline), max_version=max_version
            )
        except (NetworkException, RequestTimedOut):
            self._mistrust(node_id)
            raise

    def try_timeout_ms(self, deadline: Deadline) -> int:
        """How long a single try may take."""
        return int(min(deadline.remaining_ms, self._request_timeout_ms))

    async def controller(self, deadline: Deadline) -> int:
        """The broker that takes changes to topics."""
        if self.metadata.controller_id not in self.metadata.nodes:
            await self.refresh([], deadline)
        if self.metadata.controller_id not in self.metadata.nodes:
            raise LeaderNotAvailable("the cluster has no controller at the moment")
        return self.metadata.controller_id

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        deadline: Deadline,
        *,
        unknown_topic_wait_ms: float | None = None,
        on_retry: OnRetry | None = None,
    ) -> T:
        """Run `attempt` until it succeeds, fails for good, or the deadline passes.

        Retriable errors lead to another try after a pause that doubles up to a second. At the
        deadline the last error is raised, as the cause of a RequestTimedOut. A topic or partition
        that is unknown may have been created a moment ago; with `unknown_topic_wait_ms` that is
        believed for so long only, then it is a NoSuchTopic.
        """
        loop = asyncio.get_running_loop()
        started, pause_ms = loop.time(), float(BACKOFF_MS)
        while True:
            try:
                return await attempt()
            except UnknownTopicOrPartition as error:
                if not error.retriable:
                    raise
                waited_ms = (loop.time() - started) * 1000
                if unknown_topic_wait_ms is not None and waited_ms >= unknown_topic_wait_ms:
                    raise NoSuchTopic(error.message) from None
                failure: KafkaError = error
            except KafkaError as error:
                if not error.retriable or (isinstance(error, Unreachable) and self._is_hopeless):
                    raise
                failure = error
            if on_retry is not None:
                on_retry(failure)
            self.doubt()
            pause_ms = min(pause_ms * self._random.uniform(1.5, 2.5), MAX_BACKOFF_MS)
            if deadline.remaining_ms <= pause_ms:
                if isinstance(failure, RequestTimedOut):
                    raise failure
                raise RequestTimedOut(
                    f"not done in {deadline.timeout_ms:.0f} ms; the last error was: {failure}"
                ) from failure
            await asyncio.sleep(pause_ms / 1000)

    @property
    def _is_hopeless(self) -> bool:
        """Whether an unreachable cluster is not worth another try."""
        return self._must_answer_at_once and not self._was_reached

    # ---------------------------------------------------------------- metadata

    async def refresh(
        self,
        topics: Iterable[str] | None,
        deadline: Deadline,
        *,
        allow_auto_creation: bool = False,
        on_retry: OnRetry | None = None,
    ) -> Metadata:
        """Ask the cluster about `topics` (all, where None) and its brokers, retrying to reach it."""

        async def attempt() -> Metadata:
            names = None if topics is None else [*dict.fromkeys(topics)]
            request = MetadataRequest(
                topics=None
                if names is None
                else [MetadataRequest.MetadataRequestTopic(name=n) for n in names],
                allow_auto_topic_creation=allow_auto_creation,
            )
            response = await self.request(None, request, MetadataResponse, deadline)
            raise_for(response.error_code, None, "metadata")
            self.metadata.update(response, is_complete=names is None)
            now = asyncio.get_running_loop().time()
            for topic in response.topics:
                if topic.name is not None:
                    self._refreshed_at[topic.name] = now
            return self.metadata

        return await self.retrying(attempt, deadline, on_retry=on_retry)

    def forget(self, topic: str) -> None:
        """Make the next use of `topic` ask the cluster again: an answer showed that it is stale."""
        if self._refreshed_at.pop(topic, None) is not None:
            self.doubt()

    async def topic(
        self,
        name: str,
        deadline: Deadline,
        *,
        allow_auto_creation: bool = False,
        on_retry: OnRetry | None = None,
    ) -> Topic:
        """A topic whose partitions have leaders, from memory where that is fresh.

        A topic that nobody knows is waited for only shortly: it may have been created a moment
        ago. While it is being created automatically it is waited for until the deadline.
        """
        loop = asyncio.get_running_loop()

        async def attempt() -> Topic:
            age = loop.time() - self._refreshed_at.get(name, float("-inf"))
            if age * 1000 > METADATA_MAX_AGE_MS or name not in self.metadata.topics:
                await self.refresh(
                    [name], deadline, allow_auto_creation=allow_auto_creation, on_retry=on_retry
                )
            return self.metadata.topic(name)

        patience_ms = None if allow_auto_creation else UNKNOWN_TOPIC_WAIT_MS
        return await self.retrying(attempt, deadline, unknown_topic_wait_ms=patience_ms, on_retry=on_retry)

    async def leader(self, name: str, partition: int, deadline: Deadline) -> Node:
        """The broker that leads a partition, as far as is known: asked anew if that one did not answer."""
        leader = await self._leader_id(name, partition, deadline)
        silent_at = self._mistrusted_at.get(leader)
        if silent_at is not None and silent_at >= self._refreshed_at.get(name, float("-inf")):
            self.forget(name)
            leader = await self._leader_id(name, partition, deadline)
        try:
            return self.metadata.nodes[leader]
        except KeyError:
            self.forget(name)
            raise LeaderNotAvailable(f"broker {leader}, which leads {name}-{partition}, is away") from None

    async def _leader_id(self, name: str, partition: int, deadline: Deadline) -> int:
        topic = await self.topic(name, deadline)
        try:
            return topic.partition(partition).leader
        except (LeaderNotAvailable, UnknownTopicOrPartition):
            self.forget(name)
            raise


def _asked(name: str) -> MetadataRequest.MetadataRequestTopic:
    return MetadataRequest.MetadataRequestTopic(name=name)


def _is_open(task: asyncio.Task[Connection]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().is_open


def _abandon(task: asyncio.Task[Connection]) -> None:
    task.cancel()
    if task.done() and _is_open(task):
        task.result().abort()


def _take_exception(task: asyncio.Task[Connection]) -> None:
    """A failed attempt is reported to whoever waits for it; where nobody does, it is no news."""
    if not task.cancelled():
        task.exception()
