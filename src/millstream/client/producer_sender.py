"""Sends a producer's batches to the leaders of their partitions, and again where that is right."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from millstream.client.cluster import Cluster
from millstream.client.metadata import check_topic
from millstream.client.producer_answers import Answers
from millstream.client.producer_buffer import RecordBuffer
from millstream.client.producer_hindrances import IDENTITY, Hindrances
from millstream.client.producer_identity import Identity
from millstream.client.producer_line import Line
from millstream.client.producer_request import Flight, produce_request
from millstream.client.producer_sealing import Sealing
from millstream.client.producer_settings import ProducerSettings
from millstream.deadline import Deadline
from millstream.errors import KafkaError, NetworkException
from millstream.protocol.messages import MetadataRequest, MetadataResponse

REFRESH_PAUSE_SECONDS = 0.1
METADATA_MAX_AGE_SECONDS = 300.0
NEVER = float("inf")


class Sender:
    """Looks over the lines in turns. A turn is short and never waits: it sends what may leave, starts what is
    missing (a connection, metadata, a producer id) and says when the next turn is due. Records, answers and
    whatever was started ask for a turn too.
    """

    def __init__(
        self, cluster: Cluster, buffer: RecordBuffer, settings: ProducerSettings, identity: Identity
    ) -> None:
        self._cluster = cluster
        self._buffer = buffer
        self._settings = settings
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        self.answers = Answers(buffer, settings, cluster.metadata, self._loop)
        self._sealing = Sealing(buffer, settings, self.answers, self._loop, self.wake)
        self._flights: dict[int, int] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._hindrances = Hindrances(cluster.metadata)
        self._refreshed_at: dict[str, float] = {}
        self._turn_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._room_waiters: list[tuple[int | None, Callable[[], object]]] = []
        self.flushes = 0
        self.may_send: Callable[[Line], bool] = lambda _: True
        """Whether a line's partition is part of the transaction, which it may have to be first."""
        self.max_produce_version: int | None = None

    # ---------------------------------------------------------------- turns

    def wake(self) -> None:
        """Have a turn soon. Belongs to the loop's thread."""
        if not self._turn_is_due and not self._is_closed:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        try:
            self._look_around()
        except BaseException:  # a defect: deadlines are kept all the same
            if self._timer is None and not self._is_closed:
                self._timer = self._loop.call_later(REFRESH_PAUSE_SECONDS, self._turn)
            raise

    def _look_around(self) -> None:
        self._turn_is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_closed:
            return
        now = self._loop.time()
        for name in self._buffer.unknown_topics():
            self._start(f"topic {name}", self._learn, name)
        next_at = NEVER
        ready: dict[int, list[Line]] = {}
        for line in list(self._buffer.active):
            due_at = self._look_at(line, now, ready)
            if due_at < next_at:
                next_at = due_at
        for node_id, lines in ready.items():
            self._send_to(node_id, lines, now)
        if self._buffer.has_room():
            self._buffer.has_full = False
        self._tell_of_room()
        if next_at < NEVER:
            self._timer = self._loop.call_at(max(next_at, now), self._turn)

    def _look_at(self, line: Line, now: float, ready: dict[int, list[Line]]) -> float:
        """Put a line that may send with its leader's; or say when to look at it again."""
        expires_at = self._expire(line, now)
        if not line.queue:
            if not line.in_flight:
                with self._buffer.lock:
                    if not line.queue:
                        self._buffer.active.pop(line, None)
            return expires_at
        settings = self._settings
        due_at = line.retry_at
        batch = line.queue[0]
        if batch is line.open and not self.flushes and not self._room_waiters and self._buffer.has_room():
            due_at = max(due_at, batch.created_at + settings.linger_ms / 1000)
        self._sealing.look_ahead(line, is_due=due_at <= now)
        if not line.may_send(settings.max_in_flight, is_idempotent=settings.is_idempotent):
            return expires_at
        if due_at > now:
            return min(due_at, expires_at)
        if not self._sealing.may_leave(batch):
            return expires_at  # a thread is at it
        if not self._has_identity(line):
            self._start(IDENTITY, self._identify)
            return expires_at
        if not self.may_send(line):
            return expires_at
        leader = self._leader(line)
        if leader is None:
            self._start(f"topic {line.topic}", self._learn, line.topic)
            return expires_at
        ready.setdefault(leader, []).append(line)
        if now - self._refreshed_at.get(line.topic, now) > METADATA_MAX_AGE_SECONDS:
            self._start(f"topic {line.topic}", self._learn, line.topic)
        return expires_at

    def _expire(self, line: Line, now: float) -> float:
        """Fail batches whose time is up; when that of the next will be."""
        patience = self._settings.delivery_timeout_ms / 1000
        for batches in (line.in_flight, line.queue):
            for batch in list(batches):
                if batch.is_done:
                    continue
                if batch.created_at + patience > now:
                    break
                if batches is line.queue:
                    with self._buffer.lock:
                        line.queue.remove(batch)
                        if batch is line.open:
                            line.open = None
                error = self._hindrances.too_late(
                    line,
                    batch,
                    self._settings.delivery_timeout_ms,
                    has_identity=self._has_identity(line),
                )
                self.answers.refuse(batch, error)
        oldest = next((batch for batch in (*line.in_flight, *line.queue) if not batch.is_done), None)
        return NEVER if oldest is None else oldest.created_at + patience

    # ---------------------------------------------------------------- requests

    def _send_to(self, node_id: int, lines: list[Line], now: float) -> None:
        connection = self._cluster.open_connection(node_id)
        if connection is None:
            self._start(f"broker {node_id}", self._connect, node_id, lines)
            return
        settings = self._settings
        waiting = deque(lines)
        while waiting and self._flights.get(node_id, 0) < settings.max_in_flight:
            room = settings.max_request_bytes
            flight = Flight(node_id, connection)
            again: list[Line] = []
            while waiting:
                line = waiting[0]
                if line.in_flight and line.in_flight_on is not connection:
                    waiting.popleft()  # its leader has moved: what is on the way there comes first
                    continue
                size = line.queue[0].builder.size if line.queue[0].data is None else len(line.queue[0].data)
                if flight.batches and size > room:
                    break
                waiting.popleft()
                room -= size
                self._add(flight, line)
                if (
                    line.queue
                    and line.queue[0] is not line.open
                    and self._sealing.may_leave(line.queue[0])
                    and line.may_send(settings.max_in_flight, is_idempotent=settings.is_idempotent)
                ):
                    again.append(line)
            waiting.extend(again)
            if flight.batches:
                self._launch(flight)

    def _add(self, flight: Flight, line: Line) -> None:
        settings, buffer = self._settings, self._buffer
        with buffer.lock:
            batch = line.take()
            buffer.active.pop(line, None)
            buffer.active[line] = None
        if not self._sealing.seal(line, batch):
            return
        is_transactional = settings.transactional_id is not None
        if settings.is_idempotent:
            line.number(
                batch,
                self._identity.producer_id,
                self._identity.producer_epoch,
                is_transactional=is_transactional,
            )
        batch.attempts += 1
        line.in_flight.append(batch)
        line.in_flight_on = flight.connection
        flight.add(line, batch, batch.stamp(settings.codec, is_transactional=is_transactional))

    def _launch(self, flight: Flight) -> None:
        settings = self._settings
        request, max_version = produce_request(
            flight, settings, self._cluster.metadata, max_version=self.max_produce_version
        )
        self._flights[flight.node_id] = self._flights.get(flight.node_id, 0) + 1
        answer: asyncio.Future[Any]
        try:
            if settings.acks_code == 0:
                answer = asyncio.ensure_future(
                    flight.connection.send_unanswered(
                        request, settings.try_timeout_ms, max_version=max_version
                    )
                )
            else:
                answer = flight.connection.send(request, settings.try_timeout_ms, max_version=max_version)
        except Exception as error:
            answer = self._loop.create_future()
            answer.set_exception(error)
        answer.add_done_callback(lambda done: self._landed(flight, done))

    def _landed(self, flight: Flight, answer: asyncio.Future[Any]) -> None:
        self._flights[flight.node_id] -= 1
        if answer.cancelled():
            self.answers.lost(flight, NetworkException("the producer was closed"))
        elif (error := answer.exception()) is not None:
            self.answers.lost(flight, error)
        else:
            self.answers.take(flight, answer.result())
        self.wake()

    # ---------------------------------------------------------------- what is missing

    def _has_identity(self, line: Line) -> bool:
        if not self._settings.is_idempotent or self._settings.transactional_id is not None:
            return True
        if line.is_exhausted and line.producer_id == self._identity.producer_id:
            return False
        return self._identity.is_known

    def _leader(self, line: Line) -> int | None:
        """The broker that leads a line's partition, None if that is not known."""
        topic = self._cluster.metadata.topics.get(line.topic)
        if line.needs_leader or topic is None:
            return None
        partition = topic.partitions.get(line.index)
        if partition is None or partition.leader not in self._cluster.metadata.nodes:
            return None
        return partition.leader

    def _start(self, name: str, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        """Run something once at a time, with a pause after each run."""
        if name not in self._running and not self._is_closed:
            self._running[name] = asyncio.ensure_future(self._run(name, work, *arguments))

    async def _run(
        self, name: str, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object
    ) -> None:
        pause = self._not_before.get(name, 0.0) - self._loop.time()
        try:
            if pause > 0:
                await asyncio.sleep(pause)
            await work(*arguments)
        finally:
            self._running.pop(name, None)
            self._not_before[name] = self._loop.time() + REFRESH_PAUSE_SECONDS
            self.wake()

    async def _identify(self) -> None:
        deadline = Deadline(self._settings.max_block_ms)
        try:
            await self._identity.ask(self._cluster, deadline, self._hindrances.met(IDENTITY))
            self._hindrances.over(IDENTITY)
        except KafkaError as error:
            if not error.retriable:  # otherwise each record waits as long as it may
                self._buffer.drop(list(self._buffer.active), error)

    async def _learn(self, name: str) -> None:
        """Ask for a topic's partitions and leaders."""
        deadline = Deadline(self._settings.max_block_ms)
        self._cluster.forget(name)
        try:
            topic = await self._cluster.topic(
                name,
                deadline,
                allow_auto_creation=self._settings.auto_create_topics,
                on_retry=self._hindrances.met(f"topic {name}"),
            )
        except Exception as error:
            self._fail_topic(name, error)
            return
        self._hindrances.over(f"topic {name}")
        self._refreshed_at[name] = self._loop.time()
        self._buffer.update(topic)

    async def known(self, name: str, deadline: Deadline) -> None:
        """Wait until a topic's partitions are known."""
        check_topic(name)
        place = self._buffer.topics.get(name)
        if place is None or not place.count:
            topic = await self._cluster.topic(
                name, deadline, allow_auto_creation=self._settings.auto_create_topics
            )
            self._buffer.update(topic)

    def _fail_topic(self, name: str, error: Exception) -> None:
        """Nobody knows the topic: an error for the records that wait for it.

        Records that have their partition are kept while the cluster is only away.
        """
        if name in self._buffer.topics:
            self._buffer.fail_topic(name, error)
        may_pass = isinstance(error, KafkaError) and error.retriable
        if not may_pass and (place := self._buffer.topics.get(name)) is not None:
            self._buffer.drop(place.lines, error)

    async def _connect(self, node_id: int, lines: Iterable[Line]) -> None:
        try:
            await self._cluster.connection(node_id, Deadline(self._settings.try_timeout_ms))
            self._hindrances.over(f"broker {node_id}")
        except KafkaError as error:
            self._hindrances.add(f"broker {node_id}", error)
            for line in lines:  # it may be led elsewhere by now
                line.needs_leader = True

    # ---------------------------------------------------------------- waiting

    async def confirm(self, deadline: Deadline) -> None:
        """Ask each broker something: then it has taken what was sent before, which acks=0 does not tell."""
        for node_id in self._flights:
            connection = self._cluster.open_connection(node_id)
            if connection is not None:
                try:
                    await connection.request(
                        MetadataRequest(topics=[]), MetadataResponse, deadline.remaining_ms
                    )
                except NetworkException:
                    continue  # it is lost with all that it carried, as may be with acks=0

    def on_room(self, callback: Callable[[], object], more_bytes: int | None = None) -> None:
        """Call back in the turn in which there is room for so many bytes, or for one more batch."""
        self._room_waiters.append((more_bytes, callback))
        self.wake()

    def _tell_of_room(self) -> None:
        waiters, self._room_waiters = self._room_waiters, []
        for waiter in waiters:
            more_bytes, callback = waiter
            if self._is_closed or self._buffer.has_room(more_bytes):
                callback()
            else:
                self._room_waiters.append(waiter)

    async def close(self, error: Exception) -> None:
        """Stop; whatever was not written fails, and so does what comes."""
        self._is_closed = True
        with self._buffer.lock:
            self._buffer.end = error
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._sealing.close()
        finally:
            for name in self._buffer.unknown_topics():
                self._buffer.fail_topic(name, error)
            for batch in list(self._buffer.incomplete):
                self._buffer.release(batch)
                batch.failed(error)
            self._tell_of_room()
