"""The threads that wait for disks and check large batches, apart from one another.

Each log dir has its own for reads and its own for flushes: where a disk hangs, what waits for it takes none
of the threads that others need. Checks of large compressed batches touch no disk, and have theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from millstream.errors import KafkaStorageError

P = ParamSpec("P")
T = TypeVar("T")


class Pool(ThreadPoolExecutor):
    """At most `size` threads, started when they are needed, that know how much they have to do."""

    def __init__(self, size: int, kind: str, dir_path: str = "") -> None:
        super().__init__(size, thread_name_prefix=f"millstream-{kind}")
        self.size = size
        self.kind = kind
        self.dir_path = dir_path
        self._counting = threading.Lock()
        self._tasks = 0

    @property
    def busy(self) -> int:
        """How many threads are at work."""
        return min(self._tasks, self.size)

    @property
    def waiting(self) -> int:
        """How many tasks wait for a thread."""
        return max(self._tasks - self.size, 0)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a thread do it. If none can be started: KafkaStorageError, but it may yet be done later."""
        with self._counting:
            self._tasks += 1
        try:
            future = super().submit(fn, *args, **kwargs)
        except BaseException as error:
            self._ended()
            if isinstance(error, RuntimeError):
                raise KafkaStorageError(f"there is no thread to {self.kind} in: {error}") from error
            raise
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object = None) -> None:
        with self._counting:
            self._tasks -= 1


class Threads:
    """The pools of one broker. A log dir that has none, None, leaves its work to the loop's own threads."""

    def __init__(
        self, dir_paths: Iterable[str] = (), *, reads: int = 1, flushes: int = 1, checks: int = 0
    ) -> None:
        """`reads` and `flushes` are threads of each log dir; without `checks` the loop's own do those."""
        paths = list(dir_paths)
        self._reads = {path: Pool(reads, "read", path) for path in paths}
        self._flushes = {path: Pool(flushes, "flush", path) for path in paths}
        self._checks = Pool(checks, "check") if checks else None

    def __iter__(self) -> Iterator[Pool]:
        yield from self._reads.values()
        yield from self._flushes.values()
        if self._checks is not None:
            yield self._checks

    @property
    def checks(self) -> Executor | None:
        """For checks of large batches."""
        return self._checks

    def reads(self, dir_path: str) -> Executor | None:
        """For reads that have to wait for a log dir's disk."""
        return self._reads.get(dir_path)

    def flushes(self, dir_path: str) -> Executor | None:
        """For what has to be durable in a log dir."""
        return self._flushes.get(dir_path)

    def close(self) -> None:
        """Wait for what is under way, and end the threads."""
        for pool in self:
            pool.shutdown()
