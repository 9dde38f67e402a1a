"""Where the work of a compaction is done: in a thread, or in another process.

A process is the better place (storage/cleaning_process.py says why), but it takes a tenth of a second and
30 MB to start, which a small log is not worth; and only files of the machine can be reached from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from millstream.storage.batch_walk import Piece
from millstream.storage.cleaning import Cleaning
from millstream.storage.cleaning_job import CleaningJob, Rewritten, Scanned
from millstream.storage.cleaning_process import CleaningProcess
from millstream.storage.compaction import Compaction
from millstream.storage.disk import Disk

PIECE_BYTES = 4 << 20
"""How many bytes a thread moves before it looks up."""
LOCKED_BATCHES = 32
"""How many batches a thread takes one by one, under the interpreter's lock, before the loop gets a rest."""
REST_SECONDS = 0.001
CHECK_SECONDS = 0.5
"""How often it is seen whether another process still works for a log that is there."""

T = TypeVar("T")
Rate = Callable[[], float]
"""How many bytes a second may be moved now."""


async def in_thread(function: Callable[..., T], *args: object) -> T:
    """Run a function in a thread; even a cancellation waits for its end."""
    future = asyncio.get_running_loop().run_in_executor(None, function, *args)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


class Work(Protocol):
    """The work of one compaction."""

    async def scan(self) -> Scanned: ...

    async def rewrite(self, group: list[int]) -> Rewritten: ...

    async def close(self) -> None: ...


class ThreadWork:
    """Work in a thread, in pieces.

    Most of it runs without the interpreter's lock. Where it does not, a thread costs the loop far more
    than its share: at each of its system calls the loop lets the lock go, and waits until it has it
    back. So batches that need Python (compressed ones, mostly) are taken a few at a time, with rests.
    """

    def __init__(self, compaction: Compaction, job: CleaningJob, disk: Disk, rate: Rate) -> None:
        self._compaction = compaction
        self._cleaning = Cleaning(disk, job)
        self._rate = rate

    async def scan(self) -> Scanned:
        return await self._run(self._cleaning.scan_keys())

    async def rewrite(self, group: list[int]) -> Rewritten:
        return await self._run(self._cleaning.rewrite(group))

    async def close(self) -> None:
        await in_thread(self._cleaning.close)

    async def _run(self, pieces: Iterator[Piece | T]) -> T:
        loop = asyncio.get_running_loop()
        while True:
            self._compaction.check()
            rate, began = self._rate(), loop.time()
            result: T | None
            done, result = await in_thread(_advance, pieces, min(PIECE_BYTES, rate / 10))
            if result is not None:
                return result
            rest_s = done.moved_bytes / rate - (loop.time() - began)
            if done.locked >= LOCKED_BATCHES:
                rest_s = max(rest_s, REST_SECONDS)
            if rest_s > 0:
                await asyncio.sleep(rest_s)


def _advance(pieces: Iterator[Piece | T], max_bytes: float) -> tuple[Piece, T | None]:
    """Do pieces of work until it is time for a rest; what was done, and the result if that was all."""
    moved_bytes = locked = 0
    for piece in pieces:
        if not isinstance(piece, Piece):
            return Piece(moved_bytes, locked), piece
        moved_bytes += piece.moved_bytes
        locked += piece.locked
        if moved_bytes >= max_bytes or locked >= LOCKED_BATCHES:
            break
    return Piece(moved_bytes, locked), None


class ProcessWork:
    """Work in another process, which is killed if nobody needs the result any more."""

    def __init__(
        self, compaction: Compaction, job: CleaningJob, process: CleaningProcess, rate: Rate
    ) -> None:
        self._compaction = compaction
        self._job = job
        self._process = process
        self._rate = rate

    async def scan(self) -> Scanned:
        return await self._wait(self._process.scan, self._job, self._rate())

    async def rewrite(self, group: list[int]) -> Rewritten:
        return await self._wait(self._process.rewrite, group, self._rate())

    async def close(self) -> None:
        """Nothing to do: the process goes on with another job, or is ended by whoever started it."""

    async def _wait(self, function: Callable[..., T], *args: object) -> T:
        future = asyncio.get_running_loop().run_in_executor(None, function, *args)
        try:
            while not future.done():
                await asyncio.wait([future], timeout=CHECK_SECONDS)
                self._compaction.check()
        except BaseException:
            self._process.kill()
            await asyncio.wait([future])
            future.exception()
            raise
        return future.result()
