"""Consumer: the blocking face of AsyncConsumer, for programs without an event loop.

Signatures are written out here as in consumer.py, so that editors and type checkers know them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from re import Pattern
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from millstream.client.consumer import AsyncConsumer, Offsets, check_max_records
from millstream.client.consumer_options import ConsumerArguments
from millstream.client.face import Call, LoopThread, tell_of_fork
from millstream.client.group_metadata import GroupMetadata
from millstream.client.group_offsets import Committed
from millstream.client.offsets import Found
from millstream.client.record import ReadBatch
from millstream.client.unclosed import MustClose
from millstream.model import TopicPartition
from millstream.protocol.consumer_kernel import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow

T = TypeVar("T")

Listener = Callable[[list[TopicPartition]], object]
Calls = SimpleQueue[tuple[Listener, list[TopicPartition], asyncio.Future[Any]] | None]
"""Callbacks that the caller's thread is to call; None when what it waits for is done."""


class Desk:
    """Where callbacks are left for the thread that waits. They hold this and not the consumer, which would
    otherwise never be freed."""

    def __init__(self) -> None:
        self.calls: Calls = SimpleQueue()

    def heard(self, listener: Listener | None) -> Any:
        """A callback for the core that is called in the thread of whoever polls."""
        if listener is None:
            return None

        async def call(partitions: list[TopicPartition]) -> None:
            answer = asyncio.get_running_loop().create_future()
            self.calls.put((listener, partitions, answer))
            await answer

        return call


class Consumer(MustClose):
    """Reads records; what AsyncConsumer does, for one thread that waits.

        with Consumer("localhost:9092", group="billing") as consumer:
            consumer.subscribe("orders")
            for record in consumer:
                ...

    Connections, heartbeats and fetching ahead run on an event loop in a thread of its own. Records are
    taken apart, and callbacks called, in the thread of the caller. The keywords are AsyncConsumer's.
    """

    def __init__(
        self, bootstrap: str | list[str] = "localhost:9092", **options: Unpack[ConsumerArguments]
    ) -> None:
        async def make() -> AsyncConsumer:
            return AsyncConsumer(bootstrap, **options)

        self._thread = LoopThread("millstream-consumer")
        self._desk = Desk()
        try:
            self._core = self._thread.run(make())
        except BaseException:
            self._thread.close()
            raise
        self._flow = self._core._flow
        self._taken = self._core._assignment
        tell_of_fork(self)
        self._core._released()
        self._holds()

    def _let_go(self) -> None:
        self._thread.abandon(self._core._vanish)

    def _forked(self) -> None:
        """Called in a process that was forked off: what was fetched ahead is the other process's to read."""
        self._flow.stop()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(commits=error is None)

    def close(self, timeout: float | None = None, *, commits: bool = True) -> None:
        """Commit if that is the consumer's task, leave the group, close the connections.

        A block that is left by an error commits nothing more: the record at hand may not be done.
        """
        self._released()
        if self._thread.is_closed:
            return
        try:
            self._serve(lambda: self._core.close(timeout, commits=commits))
        finally:
            self._thread.close()

    # ---------------------------------------------------------------- between the threads

    def _do(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function of the core on its loop."""

        async def call() -> T:
            return function(*arguments)

        return self._thread.run(call())

    def _serve(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop and, while waiting, call back whom it wants called."""
        if self._thread.is_closed:
            raise self._thread.closed("the consumer")
        calls: Calls = SimpleQueue()
        served = Call(self._thread.loop, work, lambda: calls.put(None))
        outer = self._desk.calls
        try:
            self._desk.calls = calls
            served.start()
            while (call := calls.get()) is not None:
                self._answer(*call)
            return served.result()
        except asyncio.CancelledError:
            raise self._thread.closed("the consumer") from None  # by another thread, meanwhile
        except BaseException:
            served.give_up()
            raise
        finally:
            self._desk.calls = outer

    def _take_back(self) -> None:
        """A poll failed, or a signal came: what it took, the next one hands out.

        On the loop, behind what gives up the poll there: until then that one may still take something.
        """
        if not self._thread.is_closed:
            self._do(self._taken.take_back)

    def _answer(
        self, listener: Listener, partitions: list[TopicPartition], answer: asyncio.Future[Any]
    ) -> None:
        try:
            listener(partitions)
        except Exception as error:
            self._thread.call_soon(_settle, answer, error)
        else:
            self._thread.call_soon(_settle, answer, None)

    # ---------------------------------------------------------------- what to read

    def subscribe(
        self,
        topics: str | Pattern[str] | Iterable[str],
        *,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read topics together with the other members of the group; AsyncConsumer.subscribe tells more."""
        heard = {
            "on_assigned": self._desk.heard(on_assigned),
            "on_revoked": self._desk.heard(on_revoked),
            "on_lost": self._desk.heard(on_lost),
        }
        self._do(lambda: self._core.subscribe(topics, **heard))

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, whoever else does. Those that stay keep their positions."""
        self._do(self._core.assign, list(partitions))

    def unsubscribe(self, timeout: float | None = None) -> None:
        """Read nothing any more; leave the group."""
        self._serve(lambda: self._core.unsubscribe(timeout))

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read now."""
        return self._core.assignment

    @property
    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to now."""
        return self._do(lambda: self._core.subscription)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out no records of these partitions (all, where none are named) until they are resumed."""
        self._do(self._core.pause, *partitions)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with partitions that were paused (all, where none are named)."""
        self._do(self._core.resume, *partitions)

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._do(self._core.paused)

    # ---------------------------------------------------------------- records

    def poll(self, max_records: int = 500, timeout: float = 1.0) -> list[Record]:
        """The next records, at most so many; an empty list if none come within `timeout` seconds."""
        check_max_records(max_records)
        try:
            records = self._flow.take(max_records)
            if not records:
                records = self._serve(lambda: self._core.poll(max_records, timeout))
            self._taken.taking = {}  # no signal comes between this and the return, since nothing is called
            return records
        except BaseException:
            self._take_back()
            raise

    def __iter__(self) -> Iterator[Record]:
        """Record after record, until the consumer is closed. A commit covers those handed out."""
        return self._flow.iterate(self._until_ready)

    def _until_ready(self) -> bool:
        return not self._thread.is_closed and self._serve(self._flow.until_ready)

    def poll_arrow(self, timeout: float = 1.0) -> pyarrow.RecordBatch:
        """The next records by the column; AsyncConsumer.poll_arrow tells more."""
        try:
            batch = self._flow.take_arrow()
            if batch is None:
                batch = self._serve(lambda: self._core.poll_arrow(timeout))
            self._taken.taking = {}
            return batch
        except BaseException:
            self._take_back()
            raise

    def poll_batches(self, timeout: float = 1.0) -> list[ReadBatch]:
        """The next records by the batch; AsyncConsumer.poll_batches tells more."""
        try:
            batches = self._serve(lambda: self._core.poll_batches(timeout))
            self._taken.taking = {}
            return batches
        except BaseException:
            self._take_back()
            raise

    # ---------------------------------------------------------------- positions and commits

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Go on at an offset of a partition."""
        self._do(self._core.seek, partition, offset)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Go on at the first record of partitions; of all, where none are named."""
        self._do(self._core.seek_to_beginning, *partitions)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Go on behind the last record of partitions; of all, where none are named."""
        self._do(self._core.seek_to_end, *partitions)

    def seek_to_time(self, timestamp_ms: int, *partitions: tuple[str, int]) -> None:
        """Go on at the first record that is not older, at the end where there is none."""
        self._do(self._core.seek_to_time, timestamp_ms, *partitions)

    def seek_to_committed(self, *partitions: tuple[str, int]) -> None:
        """Go on where the group has committed, as after a transaction that was aborted."""
        self._do(self._core.seek_to_committed, *partitions)

    def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """The offset of the next record that a poll gives of a partition."""
        return self._thread.run(self._core.position(partition, timeout))

    def lag(self, timeout: float | None = None) -> dict[TopicPartition, int]:
        """How many offsets lie between each position and the end that this consumer may read."""
        return self._thread.run(self._core.lag(timeout))

    def commit(self, offsets: Offsets | None = None, timeout: float | None = None) -> None:
        """Commit offsets, or all positions, and wait until that is done."""
        self._thread.run(self._core.commit(offsets, timeout))

    def commit_async(self, offsets: Offsets | None = None) -> Future[None]:
        """Begin to commit offsets, or all positions; the future tells how it ended."""
        ended: Future[None] = Future()

        def begin() -> None:
            task = self._core.commit_async(offsets)
            task.add_done_callback(lambda done: _pass_on(done, ended))

        self._do(begin)
        return ended

    def committed(
        self, partitions: Iterable[tuple[str, int]] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, Committed]:
        """What the group has committed in partitions (those assigned, where none are named)."""
        return self._thread.run(self._core.committed(partitions, timeout))

    @property
    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is to its group: for `producer.send_offsets`."""
        return self._do(lambda: self._core.group_metadata)

    # ---------------------------------------------------------------- what the cluster knows

    def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return self._thread.run(self._core.beginning_offsets(partitions, timeout))

    def end_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition that this consumer may read."""
        return self._thread.run(self._core.end_offsets(partitions, timeout))

    def offsets_at(
        self, times_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, Found]:
        """The first record of each partition at or after a time; its offset is -1 if there is none."""
        return self._thread.run(self._core.offsets_at(times_ms, timeout))

    def partitions_of(self, topic: str, timeout: float | None = None) -> list[TopicPartition]:
        """The partitions of a topic; NoSuchTopic if there is none."""
        return self._thread.run(self._core.partitions_of(topic, timeout))

    def topics(self, timeout: float | None = None) -> list[str]:
        """The names of all topics, internal ones left out."""
        return self._thread.run(self._core.topics(timeout))


def _pass_on(task: asyncio.Task[None], future: Future[None]) -> None:
    if future.done():
        return  # the caller has cancelled it
    error = CancelledError() if task.cancelled() else task.exception()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _settle(answer: asyncio.Future[None], error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
