"""One shard in service: its log, its timers, and the small writes that are waiting to be made together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from millstream.coordinator.internal_log import InternalLog
from millstream.coordinator.promise import Promise
from millstream.coordinator.shard import Entry, Result, Shard
from millstream.errors import KafkaError, NotCoordinator

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
T = TypeVar("T")

RETRY_MS = 500
"""When the work of a timer is tried again after the log refused its entries."""

PIECE_BYTES = 64 * 1024
"""How large batches are made where the entries need not be in one."""

FAILED_RETRY_MS = 60_000
"""When the work of a timer is tried again after it failed for a reason that is a defect."""

MAX_RECORD_OVERHEAD = 30

Done = tuple[Result[Any], Callable[[KafkaError], Any], Promise[Any]]
"""A small write that is in the log, what to answer if it is lost all the same, and to whom."""


class Keeper(Protocol[S]):
    """What all shards of a topic share: the runtime."""

    failures: int

    def do_idle(self, idle: Idle[S]) -> None: ...

    def keep_when_committed(
        self, host: Host[S], committed: asyncio.Future[None], done: list[Done]
    ) -> None: ...


class Host(Generic[S]):
    """One shard in service, with its log and its timers."""

    def __init__(self, index: int, internal: InternalLog, keeper: Keeper[S]) -> None:
        self.index = index
        self.log = internal
        self.is_active = False
        self.is_over = False
        self.next_offset = 0
        self.task: asyncio.Task[None] | None = None
        self._keeper = keeper
        self._timers: dict[object, asyncio.TimerHandle | Idle[S]] = {}
        self._together: list[Together[S]] = []
        self.awaiting: dict[object, Callable[[S], Result[Any]]] = {}
        """What is to be done when the shard is in service."""
        self.shard: S

    def set(self, key: object, delay_ms: int, work: Callable[[], Result[Any]]) -> None:
        self.cancel(key)
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(max(delay_ms, 0) / 1000, self.fire, key, work)

    def set_idle(self, key: object, work: Callable[[], Result[Any]]) -> None:
        self.cancel(key)
        self._timers[key] = idle = Idle(self, key, work)
        self._keeper.do_idle(idle)

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

    def do_now(self, key: object, work: Callable[[S], Result[Any]]) -> None:
        self.cancel(("soon", key))
        self.fire(("soon", key), lambda: work(self.shard))

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
            self._keeper.failures += 1
            log.exception("a timer of partition %d failed", self.index)
            if key not in self._timers:  # it did not come to set it again, and what it does ends nowhere else
                self.set(key, FAILED_RETRY_MS, work)

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
        done: list[Done] = []
        entries: list[Entry] = []
        size = 0
        for work, refuse, promise in together:
            try:
                result = work(self.shard)
            except KafkaError as error:
                done.append((Result(refuse(error)), refuse, promise))  # it holds if what it saw does
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

    def _write_all(self, done: list[Done], entries: list[Entry]) -> None:
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
            self._keeper.keep_when_committed(self, committed, done)


class Idle(Generic[S]):
    """Work that waits for its turn."""

    __slots__ = ("host", "is_cancelled", "key", "work")

    def __init__(self, host: Host[S], key: object, work: Callable[[], Result[Any]]) -> None:
        self.host = host
        self.key = key
        self.work = work
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


Together = tuple[Callable[[S], Result[Any]], Callable[[KafkaError], Any], Promise[Any]]
"""A small write that waits: what to do, what to answer if it is refused, and to whom."""


def _pieces(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """The entries in parts of which each fits in a batch."""
    start = size = 0
    for index, entry in enumerate(entries):
        size += len(entry.key) + len(entry.value or b"") + MAX_RECORD_OVERHEAD
        if size > PIECE_BYTES and index > start:
            yield entries[start:index]
            start, size = index, 0
    yield entries[start:]
