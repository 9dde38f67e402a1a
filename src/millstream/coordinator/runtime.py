"""Drives shards: loads them when their partition is led here, writes, replays, answers when committed."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from millstream.coordinator.promise import Promise
from millstream.coordinator.shard import Entry, Producer, Result, Shard
from millstream.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, KafkaError, NotCoordinator

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
T = TypeVar("T")

LOAD_SLICE_SECONDS = 0.01
"""How long replaying may hold the loop at a time."""

ENTRIES_A_STEP = 256
RETRY_MS = 500
"""When the work of a timer is tried again after the log refused its entries."""


PIECE_BYTES = 64 * 1024
"""How large batches are made where the entries need not be in one."""

MAX_RECORD_OVERHEAD = 30


@dataclass(slots=True)
class LoadedBatch:
    """A batch of an internal topic, decoded: entries with their offsets.

    A marker that ends a transaction has no entries, and says by `is_commit` how it ended.
    """

    entries: list[tuple[int, Entry]]
    producer: Producer | None = None
    is_commit: bool | None = None


class InternalLog(Protocol):
    """A partition of an internal topic that this broker leads."""

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        ...

    def append(self, entries: Sequence[Entry], producer: Producer | None) -> int:
        """Append one batch, at once; the offset after it. Raises KafkaError and appends nothing."""
        ...

    def when_committed(self, next_offset: int) -> asyncio.Future[None] | None:
        """A future that ends when everything below the offset is committed; None if it is.

        NotCoordinator if another broker may lead by now.
        """
        ...

    async def read(self, offset: int) -> tuple[list[LoadedBatch], int]:
        """Batches from `offset` on, some megabytes at most, and where to go on; none at the end."""
        ...


class _Host(Generic[S]):
    """One shard in service, with its log and its timers."""

    def __init__(self, index: int, internal: InternalLog, runtime: Runtime[S]) -> None:
        self.index = index
        self.log = internal
        self.is_active = False
        self.is_over = False
        self.next_offset = 0
        self.task: asyncio.Task[None] | None = None
        self._runtime = runtime
        self._timers: dict[object, asyncio.TimerHandle | _Idle[S]] = {}
        self._together: list[_Together[S]] = []
        self.awaiting: dict[object, Callable[[S], Result[Any]]] = {}
        """What is to be done when the shard is in service."""
        self.shard: S

    def set(self, key: object, delay_ms: int, work: Callable[[], Result[Any]]) -> None:
        self.cancel(key)
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(max(delay_ms, 0) / 1000, self.fire, key, work)

    def set_idle(self, key: object, work: Callable[[], Result[Any]]) -> None:
        self.cancel(key)
        self._timers[key] = idle = _Idle(self, key, work)
        self._runtime.do_idle(idle)

    def cancel(self, key: object) -> None:
        handle = self._timers.pop(key, None)
        if handle is not None:
            handle.cancel()

    def cancel_all(self) -> None:
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()

    def do_soon(self, key: object, work: Callable[[S], Result[Any]]) -> None:
        self.set(("soon", key), 0, lambda: work(self.shard))

    def fire(self, key: object, work: Callable[[], Result[Any]]) -> None:
        self._timers.pop(key, None)
        if self.is_over:
            return
        self.write_together()
        try:
            self.apply(work())
        except KafkaError as error:
            log.warning("a timer of partition %d could not be served: %s", self.index, error.message)
            self.set(key, RETRY_MS, work)
        except Exception:
            self._runtime.failures += 1
            log.exception("a timer of partition %d failed", self.index)

    def apply(self, result: Result[T]) -> None:
        """Write a result's entries and replay them: the state moves on only with the log."""
        if not result.entries:
            return
        for entries in (result.entries,) if result.is_atomic else _pieces(result.entries):
            next_offset = self.log.append(entries, result.producer)
            offset = next_offset - len(entries)
            for entry in entries:
                self.shard.replay(entry, result.producer, offset)
                offset += 1
            self.next_offset = next_offset

    # Many small writes at once

    def join_next_write(
        self, work: Callable[[S], Result[T]], refuse: Callable[[KafkaError], T]
    ) -> Promise[T]:
        promise: Promise[T] = Promise()
        if not self._together:
            asyncio.get_running_loop().call_soon(self.write_together)
        self._together.append((work, refuse, promise))
        return promise

    def write_together(self) -> None:
        """Do the operations that wait for this, in order, and write what they want in one batch."""
        together = self._together
        if not together:
            return
        self._together = []
        if self.is_over:
            error = NotCoordinator()
            for _, refuse, promise in together:
                promise.keep(refuse(error))
            return
        done: list[_Done] = []
        entries: list[Entry] = []
        size = 0
        for work, refuse, promise in together:
            try:
                result = work(self.shard)
            except KafkaError as error:
                promise.keep(refuse(error))
                continue
            except Exception as error:
                promise.break_(error)
                continue
            added = sum([len(entry.key) + len(entry.value or b"") for entry in result.entries])
            if size + added > PIECE_BYTES and entries:
                self._write_all(done, entries)
                done, entries, size = [], [], 0
            size += added + MAX_RECORD_OVERHEAD * len(result.entries)
            entries += result.entries
            done.append((result, refuse, promise))
        self._write_all(done, entries)

    def _write_all(self, done: list[_Done], entries: list[Entry]) -> None:
        try:
            self.apply(Result(None, entries))
            committed = self.log.when_committed(self.next_offset)
        except KafkaError as error:
            if len(done) == 1:
                _, refuse, promise = done[0]
                promise.keep(refuse(error))
                return
            for each in done:  # what one of them wants may be what the log refuses
                self._write_all([each], list(each[0].entries))
            return
        if committed is None:
            for result, _, promise in done:
                promise.keep(result.response)
        elif done:
            self._runtime.keep_when_committed(self, committed, done)


class _Idle(Generic[S]):
    """Work that waits for its turn."""

    __slots__ = ("host", "is_cancelled", "key", "work")

    def __init__(self, host: _Host[S], key: object, work: Callable[[], Result[Any]]) -> None:
        self.host = host
        self.key = key
        self.work = work
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


_Together = tuple[Callable[[S], Result[Any]], Callable[[KafkaError], Any], Promise[Any]]
_Done = tuple[Result[Any], Callable[[KafkaError], Any], Promise[Any]]


def _pieces(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """The entries in parts of which each fits in a batch."""
    start = size = 0
    for index, entry in enumerate(entries):
        size += len(entry.key) + len(entry.value or b"") + MAX_RECORD_OVERHEAD
        if size > PIECE_BYTES and index > start:
            yield entries[start:index]
            start, size = index, 0
    yield entries[start:]


def _replay_steps(shard: Shard, batches: Iterable[LoadedBatch]) -> Iterator[None]:
    """Replay batches that were read from the log, some entries a step."""
    for batch in batches:
        producer = batch.producer
        if batch.is_commit is not None and producer is not None:
            shard.replay_end(producer, batch.is_commit)
        entries = batch.entries
        for start in range(0, len(entries), ENTRIES_A_STEP):
            for at, entry in entries[start : start + ENTRIES_A_STEP]:
                shard.replay(entry, producer, at)
            yield


class Runtime(Generic[S]):
    """The shards of one internal topic that this broker leads, by partition."""

    def __init__(
        self, name: str, make_shard: Callable[[int, Any], S], commit_timeout_ms: int | None = None
    ) -> None:
        """`make_shard(partition, timers)` makes an empty shard.

        Whoever waits longer than `commit_timeout_ms` for what was written to be committed is told that
        the coordinator is not available; it may be committed later all the same.
        """
        self.name = name
        self._commit_timeout_s = None if commit_timeout_ms is None else commit_timeout_ms / 1000
        self.failures = 0
        """How often a timer's work failed for a reason that is a defect."""
        self._make_shard = make_shard
        self._hosts: dict[int, _Host[S]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: deque[_Idle[S]] = deque()
        self._turn = asyncio.Lock()
        self._reading = asyncio.Lock()

    def __iter__(self) -> Iterator[S]:
        """The shards in service."""
        return iter([host.shard for host in self._hosts.values() if host.is_active])

    @property
    def active(self) -> list[int]:
        """The partitions whose shards are in service."""
        return [index for index, host in self._hosts.items() if host.is_active]

    def shard(self, index: int) -> S | None:
        """The shard of a partition, if it is in service here."""
        host = self._hosts.get(index)
        return host.shard if host is not None and host.is_active else None

    @property
    def led(self) -> list[int]:
        """The partitions whose shards are in service, or will be when they have been loaded."""
        return list(self._hosts)

    @property
    def loading(self) -> list[asyncio.Task[None]]:
        """The tasks that load what is led here and not in service yet."""
        return [host.task for host in self._hosts.values() if host.task is not None and not host.is_active]

    def is_active(self, index: int) -> bool:
        host = self._hosts.get(index)
        return host is not None and host.is_active

    def check_active(self, index: int) -> None:
        """Raise unless the partition's shard is in service here."""
        self._active(index)

    def lead(self, index: int, internal: InternalLog) -> None:
        """This broker leads the partition from now on: load it."""
        self.resign(index)
        host = _Host(index, internal, self)
        host.shard = self._make_shard(index, host)
        self._hosts[index] = host
        host.task = asyncio.get_running_loop().create_task(self._load(host))

    def resign(self, index: int) -> None:
        """This broker no longer leads the partition."""
        host = self._hosts.pop(index, None)
        if host is None:
            return
        host.write_together()
        host.is_over = True
        host.cancel_all()
        if host.task is not None:
            host.task.cancel()
        if host.is_active:
            host.is_active = False
            host.shard.unloaded(NotCoordinator())

    def do_idle(self, idle: _Idle[S]) -> None:
        """Do work when its turn comes: one piece each time the event loop comes round."""
        self._idle.append(idle)
        if len(self._idle) == 1:
            asyncio.get_running_loop().call_soon(self._next_idle)

    def _next_idle(self) -> None:
        while self._idle:
            idle = self._idle[0]
            if not idle.is_cancelled:
                idle.host.fire(idle.key, idle.work)
                # What it set waits behind the others; as long as it is here, nobody else begins a turn.
                self._idle.popleft()
                break
            self._idle.popleft()
        if self._idle:
            asyncio.get_running_loop().call_soon(self._next_idle)

    def stop(self) -> None:
        for index in list(self._hosts):
            self.resign(index)
        for task in self._tasks:
            task.cancel()

    async def _load(self, host: _Host[S]) -> None:
        """Replay the whole log; after a failure begin again, with an empty shard."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                count = await self._replay_log(host)
                await self._in_turns(host.shard.prepare())
                await self._replay_log(host)  # ends of transactions that came meanwhile
                break
            except Exception:
                self.failures += 1
                log.exception(
                    "loading partition %d of %s failed; it will be tried again", host.index, self.name
                )
                await asyncio.sleep(RETRY_MS / 1000)
                host.cancel_all()
                host.next_offset = 0
                host.shard = self._make_shard(host.index, host)
        host.is_active = True
        host.shard.loaded()
        for key, work in host.awaiting.items():
            host.do_soon(key, work)
        host.awaiting.clear()
        if count:
            seconds = loop.time() - started
            log.info("loaded %d records of %s-%d in %.2f s", count, self.name, host.index, seconds)

    async def _replay_log(self, host: _Host[S]) -> int:
        """Replay from `next_offset` on; how many entries. There is nothing more when it returns.

        Entries of one partition at a time are in memory: decoding holds the interpreter too, and what is
        alive meanwhile prolongs garbage collections.
        """
        offset, count = host.next_offset, 0
        while True:
            async with self._reading:
                batches, offset = await host.log.read(offset)
                if not batches and offset >= host.log.end_offset:
                    host.next_offset = offset
                    return count
                await self._in_turns(_replay_steps(host.shard, batches))
                count += sum(len(batch.entries) for batch in batches)
                del batches

    async def _in_turns(self, steps: Iterator[None]) -> None:
        """Take short steps, for one shard at a time; between two turns the event loop does all else.

        A broker may begin to lead many partitions at once: if each had its turn whenever the loop comes
        round, others would wait for all of them.
        """
        loop = asyncio.get_running_loop()
        is_over = False
        while not is_over:
            async with self._turn:
                pause_at = loop.time() + LOAD_SLICE_SECONDS
                is_over = True
                for _ in steps:
                    if loop.time() > pause_at:
                        is_over = False
                        break
                await asyncio.sleep(0)

    # What handlers ask for

    def write_now(self, index: int, work: Callable[[S], Result[T]]) -> T | Awaitable[T]:
        """Do an operation: its entries are written and replayed before anything else happens to the shard.

        Answers when they are committed, which may be now. Also without entries it answers only what is
        committed: what the operation saw may still be on its way to the replicas.
        """
        host = self._active(index)
        host.write_together()
        result = work(host.shard)
        host.apply(result)
        committed = host.log.when_committed(host.next_offset)
        response = result.response
        if committed is None and not isinstance(response, Promise):
            return response
        return self._answer(host, committed, response)

    async def write(self, index: int, work: Callable[[S], Result[T]]) -> T:
        """As `write_now`, for those who wait anyway."""
        answer = self.write_now(index, work)
        return await answer if isinstance(answer, Awaitable) else answer

    async def _answer(
        self, host: _Host[S], committed: asyncio.Future[None] | None, response: T | Promise[T]
    ) -> T:
        if committed is not None:
            await self._wait(committed)
        if isinstance(response, Promise):
            # What keeps a promise is in the log, but not yet on all replicas.
            kept: T = await _kept(response)
            await self._settle(host)
            return kept
        if host.is_over:
            raise NotCoordinator
        return response

    def write_with_others(
        self, index: int, work: Callable[[S], Result[T]], refuse: Callable[[KafkaError], T]
    ) -> Promise[T]:
        """As `write_now`, for small operations of which many come at once.

        They are done together, and in order, when the event loop has read what came with them, or before
        the next operation of another kind: so what all of them write costs one append. None of them may
        depend on what another writes. Where one is refused, the answer is what `refuse` makes of that.
        """
        return self._active(index).join_next_write(work, refuse)

    def keep_when_committed(self, host: _Host[S], committed: asyncio.Future[None], done: list[_Done]) -> None:
        task = asyncio.get_running_loop().create_task(self._keep_when_committed(host, committed, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_when_committed(
        self, host: _Host[S], committed: asyncio.Future[None], done: list[_Done]
    ) -> None:
        try:
            await self._wait(committed)
            if host.is_over:
                raise NotCoordinator
        except KafkaError as error:
            for _, refuse, promise in done:
                promise.keep(refuse(error))
            return
        for result, _, promise in done:
            promise.keep(result.response)

    def do_soon(self, index: int, key: object, work: Callable[[S], Result[Any]]) -> None:
        """Do an operation that nobody waits for as soon as the shard is in service, again if it is refused.

        It takes the place of one with the same key that has not been done yet. If the partition moves
        before, it is not done at all.
        """
        host = self._hosts.get(index)
        if host is not None:
            if host.is_active:
                host.do_soon(key, work)
            else:
                host.awaiting[key] = work

    async def read(self, index: int, look: Callable[[S], T]) -> T:
        """Look at a shard; the answer holds only what is committed."""
        host = self._active(index)
        host.write_together()
        seen = look(host.shard)
        await self._settle(host)
        return seen

    async def read_all(self, look: Callable[[S], T]) -> list[T]:
        """Look at all shards that this broker serves; CoordinatorLoadInProgress if one is not loaded.

        One after the other: all else has its turn in between. A shard that moves meanwhile is left out.
        """
        hosts = list(self._hosts.values())
        if not all(host.is_active for host in hosts):
            raise CoordinatorLoadInProgress
        seen: list[tuple[_Host[S], T]] = []
        for host in hosts:
            if not host.is_over:
                host.write_together()
                seen.append((host, look(host.shard)))
                await asyncio.sleep(0)
        settled: list[T] = []
        for host, found in seen:
            if not host.is_over:
                await self._settle(host)
                settled.append(found)
        return settled

    def end_transaction(self, index: int, producer: Producer, is_commit: bool) -> None:
        """The end of a transaction was appended to the partition, by whoever coordinates it."""
        host = self._hosts.get(index)
        if host is not None and host.is_active:
            host.shard.replay_end(producer, is_commit)
            host.next_offset = host.log.end_offset

    async def _settle(self, host: _Host[S]) -> None:
        committed = host.log.when_committed(host.next_offset)
        if committed is not None:
            await self._wait(committed)
        if host.is_over:
            raise NotCoordinator

    async def _wait(self, committed: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(self._commit_timeout_s):
                await committed
        except TimeoutError:
            raise CoordinatorNotAvailable("what was written is not committed yet") from None
        except KafkaError as error:
            raise NotCoordinator(f"the coordinator's log is gone: {error.message}") from None

    def _active(self, index: int) -> _Host[S]:
        host = self._hosts.get(index)
        if host is None:
            raise NotCoordinator
        if not host.is_active:
            raise CoordinatorLoadInProgress
        return host


def _kept(promise: Promise[T]) -> asyncio.Future[T]:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def settle(done: Promise[T]) -> None:
        if future.done():
            return
        try:
            future.set_result(done.result())
        except Exception as error:
            future.set_exception(error)

    promise.listen(settle)
    return future
