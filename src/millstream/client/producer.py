"""Writes records to a cluster, from asyncio."""

from __future__ import annotations

import asyncio
from random import Random
from types import TracebackType
from typing import Any, Self, Unpack

from millstream.client.cluster import Cluster
from millstream.client.face import Closed
from millstream.client.partitioners import function_of
from millstream.client.producer_buffer import Headers, RecordBuffer
from millstream.client.producer_delivery import Delivery, Outcome
from millstream.client.producer_identity import Identity
from millstream.client.producer_sender import Sender
from millstream.client.producer_settings import ProducerOptions, ProducerSettings
from millstream.client.serializers import Serializer, serializer_of
from millstream.clock import Clock, SystemClock
from millstream.errors import RequestTimedOut

CLOSE_SECONDS = 30.0


class AsyncProducer:
    """Writes records, in order and each once.

        async with AsyncProducer("localhost:9092") as producer:
            delivered = await producer.send("orders", b"tea", key=b"42")

    `send` takes a record and returns at once; records travel in batches. Awaiting what it returns waits
    until the record is written. A program that sends many awaits `room` between them instead, and `flush` at
    the end:

            for value in values:
                await producer.room()
                producer.send("orders", value)
            await producer.flush()

    Belongs to the event loop in which it was started. ProducerSettings describes the options.
    """

    def __init__(
        self,
        bootstrap: str | list[str] = "localhost:9092",
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self.settings = settings = ProducerSettings(**options)
        self._clock = clock or SystemClock()
        self._random = random or Random()  # noqa: S311 - spreads records, keeps no secret
        self._serialize = serializer_of(settings.serializer)
        self._serialize_key = serializer_of(settings.key_serializer)
        self._buffer = RecordBuffer(
            settings,
            now_ms=self._clock.now_ms,
            monotonic=self._monotonic,
            random=self._random,
            partition_function=function_of(settings.partitioner),
        )
        self._append = self._buffer.append
        self._cluster = Cluster(
            bootstrap,
            client_id=settings.client_id,
            request_timeout_ms=settings.try_timeout_ms,
            random=self._random,
        )
        self._identity = Identity()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: Sender | None = None
        self._is_closed = False

    def _monotonic(self) -> float:
        return self._loop.time() if self._loop is not None else 0.0

    @property
    def _sender(self) -> Sender:
        if self._is_closed:
            raise Closed("the producer is closed")
        if self._running is None:
            raise RuntimeError("start the producer: `async with AsyncProducer(...)`, or `await start()`")
        return self._running

    # ---------------------------------------------------------------- life

    async def start(self) -> Self:
        """Begin to work on the running loop. Nothing has to be reachable yet."""
        if self._is_closed:
            raise Closed("the producer is closed")
        if self._running is None:
            self._loop = asyncio.get_running_loop()
            self._running = Sender(self._cluster, self._buffer, self.settings, self._identity)
            self._buffer.on_work = self._running.wake
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write what was sent, for at most `timeout` seconds, then let go of everything.

        What was not written by then fails with Closed.
        """
        if self._is_closed:
            return
        try:
            if self._running is not None:
                await self.flush(timeout)
        except RequestTimedOut:
            pass  # each delivery says so
        finally:
            sender, self._is_closed = self._running, True
            if sender is not None:
                await sender.close(Closed("the producer was closed before the record was written"))
            await self._cluster.close()

    # ---------------------------------------------------------------- records

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Take a record and send it soon; await the delivery to know where it was written.

        Raises BufferFull if records come faster than brokers take them: await `room` before.
        """
        if self._running is None or self._is_closed:
            _ = self._sender
        if self._serialize is not None and value is not None:
            value = self._serialize(value)
        if self._serialize_key is not None and key is not None:
            key = self._serialize_key(key)
        return self._append(topic, key, value, partition, timestamp_ms, headers)

    async def room(self, timeout: float | None = None) -> None:
        """Wait until the buffer has room for more records, letting the sender work meanwhile.

        Returns at once most of the time: call it before each record.
        """
        buffer = self._buffer
        if not buffer.has_full and buffer.has_room():
            return
        if buffer.has_room():
            buffer.has_full = False
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        room = loop.create_future()
        self._sender.on_room(lambda: None if room.done() else room.set_result(None))
        await _within(room, self._block_seconds(timeout), "there was no room for more records")

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all records that were sent are written or have failed; do not linger."""
        sender = self._sender
        seconds = self.settings.delivery_timeout_ms / 1000 if timeout is None else timeout
        sender.flushes += 1
        sender.wake()
        try:
            async with asyncio.timeout(seconds):
                for place in list(self._buffer.topics.values()):
                    if place.aside:
                        await _settled(place.unplaced)
                for batch in list(self._buffer.incomplete):
                    await _settled(batch)
        except TimeoutError:
            raise RequestTimedOut(f"records were still unwritten after {seconds} seconds") from None
        finally:
            sender.flushes -= 1

    def _block_seconds(self, timeout: float | None) -> float:
        return self.settings.max_block_ms / 1000 if timeout is None else timeout

    @property
    def buffered_bytes(self) -> int:
        """What the records that are not written yet take."""
        return self._buffer.used_bytes

    @property
    def serializers(self) -> tuple[Serializer | None, Serializer | None]:
        """The functions for keys and values; None for bytes as they are."""
        return self._serialize_key, self._serialize


async def _settled(outcome: Outcome) -> None:
    """Wait until an outcome is known, or has passed its records on."""
    if outcome.is_done:
        return
    known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    outcome.add_waiter(lambda: None if known.done() else known.set_result(None))
    await known


async def _within(room: asyncio.Future[None], seconds: float, what: str) -> None:
    try:
        async with asyncio.timeout(seconds):
            await room
    except TimeoutError:
        raise RequestTimedOut(f"{what} in {seconds} seconds") from None
