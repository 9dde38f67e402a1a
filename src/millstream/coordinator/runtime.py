"""Drives shards: loads them when their partition is led here, writes, replays, answers when committed."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, TypeVar

from millstream.coordinator.host import RETRY_MS, Done, Host, Idle
from millstream.coordinator.internal_log import InternalLog, replay_steps
from millstream.coordinator.promise import Promise
from millstream.coordinator.shard import Producer, Result, Shard
from millstream.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, KafkaError, NotCoordinator

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
T = TypeVar("T")

LOAD_SLICE_SECONDS = 0.01
"""How long replaying may hold the loop at a time."""


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
        self._hosts: dict[int, Host[S]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: deque[Idle[S]] = deque()
        self._turn = asyncio.Lock()
        self._reading = asyncio.Lock()

    def __iter__(self) -> Iterator[S]:
        """The shards in service; may be asked for from any thread."""
        return iter([host.shard for host in list(self._hosts.values()) if host.is_active])

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
        host = Host(index, internal, self)
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

    def do_idle(self, idle: Idle[S]) -> None:
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

    async def _load(self, host: Host[S]) -> None:
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
            host.do_now(key, work)
        host.awaiting.clear()
        if count:
            seconds = loop.time() - started
            log.info("loaded %d records of %s-%d in %.2f s", count, self.name, host.index, seconds)

    async def _replay_log(self, host: Host[S]) -> int:
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
                await self._in_turns(replay_steps(host.shard, batches))
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

        Answers when they are committed, which may be now. Also without entries, and where it refuses, it
        answers only what is committed: what the operation saw may still be on its way to the replicas.
        """
        host = self._active(index)
        host.write_together()
        try:
            result = work(host.shard)
        except KafkaError as error:
            seen = host.log.when_committed(host.next_offset)
            if seen is None:
                raise
            return self._refuse(host, seen, error)
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
        self, host: Host[S], committed: asyncio.Future[None] | None, response: T | Promise[T]
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

    async def _refuse(self, host: Host[S], committed: asyncio.Future[None], error: KafkaError) -> Any:
        await self._wait(committed)
        raise NotCoordinator if host.is_over else error

    def write_with_others(
        self, index: int, work: Callable[[S], Result[T]], refuse: Callable[[KafkaError], T]
    ) -> Promise[T]:
        """As `write_now`, for small operations of which many come at once.

        They are done together, and in order, when the event loop has read what came with them, or before
        the next operation of another kind: so what all of them write costs one append. None of them may
        depend on what another writes. Where one is refused, the answer is what `refuse` makes of that.
        """
        return self._active(index).join_next_write(work, refuse)

    def keep_when_committed(self, host: Host[S], committed: asyncio.Future[None], done: list[Done]) -> None:
        task = asyncio.get_running_loop().create_task(self._keep_when_committed(host, committed, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_when_committed(
        self, host: Host[S], committed: asyncio.Future[None], done: list[Done]
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

    def do_now(self, index: int, key: object, work: Callable[[S], Result[Any]]) -> None:
        """As `do_soon`, before anything else happens to the shard, and where it is not in service yet,
        before anything happens to it then."""
        host = self._hosts.get(index)
        if host is not None and host.is_active:
            host.do_now(key, work)
        else:
            self.do_soon(index, key, work)

    async def read(self, index: int, look: Callable[[S], T]) -> T:
        """Look at a shard; the answer holds only what is committed."""
        host = self._active(index)
        host.write_together()
        try:
            seen = look(host.shard)
        except KafkaError:
            await self._settle(host)
            raise
        await self._settle(host)
        return seen

    async def read_all(self, look: Callable[[S], T]) -> list[T]:
        """Look at all shards that this broker serves; CoordinatorLoadInProgress if one is not loaded.

        One after the other: all else has its turn in between. A shard that moves meanwhile is left out.
        While it is not certain that one is still here, or that what it holds is committed, the answer is as
        while it is loaded: some clients that list give up upon any other.
        """
        hosts = list(self._hosts.values())
        if not all(host.is_active for host in hosts):
            raise CoordinatorLoadInProgress
        seen: list[tuple[Host[S], T]] = []
        for host in hosts:
            if not host.is_over:
                host.write_together()
                seen.append((host, look(host.shard)))
                await asyncio.sleep(0)
        settled: list[T] = []
        for host, found in seen:
            if host.is_over:
                continue
            try:
                await self._settle(host)
            except (NotCoordinator, CoordinatorNotAvailable) as error:
                if not host.is_over:
                    raise CoordinatorLoadInProgress(error.message) from error
            else:
                settled.append(found)
        return settled

    def end_transaction(self, index: int, producer: Producer, is_commit: bool) -> None:
        """The end of a transaction was appended to the partition, by whoever coordinates it."""
        host = self._hosts.get(index)
        if host is not None and host.is_active:
            host.shard.replay_end(producer, is_commit)
            host.next_offset = host.log.end_offset

    async def _settle(self, host: Host[S]) -> None:
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

    def _active(self, index: int) -> Host[S]:
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
