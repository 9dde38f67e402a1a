"""The work of compaction in a process of its own, which leaves the broker's interpreter and processor alone.

A thread of the broker would do, and does for small logs. But a thread at work has its turn of the
processor when the loop wakes up, and holds the interpreter now and then: measured, it multiplied the
time that producers waited (docs/decisions/004-compaction-in-a-process.md). A process with the lowest
priority does not.

The two talk through the child's standard input and output: frames of a length (uint32, big-endian) and
MessagePack. The broker sends a CleaningJob, is told Scanned; sends a list of base offsets, a group, and
is told Rewritten; until it sends another job. Failed, in place of an answer, ends the job. The child
ends when its input does, at once and whatever it does: if the broker dies, nobody else may meet it in
the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Final, TypeVar

import msgspec

import millstream
from millstream.errors import MillstreamError
from millstream.storage.batch_walk import Piece, Uncleanable
from millstream.storage.cleaning import Cleaning
from millstream.storage.cleaning_job import CleaningJob, Rewritten, Scanned
from millstream.storage.os_disk import OsDisk

LOWEST_PRIORITY: Final = 19
_LENGTH_BYTES: Final = 4
T = TypeVar("T", Scanned, Rewritten)


class CleaningProcessDied(MillstreamError):
    """The process ended before it answered."""


class Failed(msgspec.Struct, frozen=True):
    """What went wrong: an OSError with its number, or else batches that cannot be compacted."""

    message: str
    error_number: int = 0


class Command(msgspec.Struct, frozen=True):
    """A new job, or the next group of the one under way."""

    job: CleaningJob | None = None
    group: list[int] = []
    max_bytes_per_second: float = 0.0


class CleaningProcess:
    """The broker's end. `scan` and `rewrite` block until the work is done, or until `kill` is called."""

    def __init__(self) -> None:
        source = str(Path(millstream.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH", ""))))
        # in a process group of its own, so that a terminal's interrupt does not reach it; not in a session
        # of its own, because Linux may weigh priorities only within one
        self._process = subprocess.Popen(  # noqa: S603 (the command is fixed)
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,
        )
        with contextlib.suppress(OSError):  # it works as well without
            os.setpriority(os.PRIO_PROCESS, self._process.pid, LOWEST_PRIORITY)

    @property
    def pid(self) -> int:
        return self._process.pid

    def scan(self, job: CleaningJob, max_bytes_per_second: float) -> Scanned:
        return self._ask(Command(job=job, max_bytes_per_second=max_bytes_per_second), Scanned)

    def rewrite(self, group: list[int], max_bytes_per_second: float) -> Rewritten:
        return self._ask(Command(group=group, max_bytes_per_second=max_bytes_per_second), Rewritten)

    def _ask(self, command: Command, kind: type[T]) -> T:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write(process.stdin, msgspec.msgpack.encode(command))
            answer = _read(process.stdout)
        except (OSError, ValueError):  # the pipe is broken, or was closed
            answer = None
        if answer is None:
            raise CleaningProcessDied(f"the process that compacts ended with {process.wait()}")
        is_good, content = answer[:1] == b"+", answer[1:]
        if is_good:
            return msgspec.msgpack.decode(content, type=kind)
        failed = msgspec.msgpack.decode(content, type=Failed)
        if failed.error_number:
            raise OSError(failed.error_number, failed.message)
        raise Uncleanable(failed.message)

    def kill(self) -> None:
        """End the process now, in whatever it does."""
        self._process.kill()

    def close(self) -> None:
        """End the process and wait for that."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """The child's end: do what comes in, until the input ends."""
    commands: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(source, commands), daemon=True).start()
    disk = OsDisk()
    cleaning: Cleaning | None = None
    while True:
        command = msgspec.msgpack.decode(commands.get(), type=Command)
        try:
            if command.job is not None:
                if cleaning is not None:
                    cleaning.close()
                cleaning = Cleaning(disk, command.job)
                pieces: Iterator[Piece | Scanned | Rewritten] = cleaning.scan_keys()
            else:
                assert cleaning is not None
                pieces = cleaning.rewrite(command.group)
            answer = b"+" + msgspec.msgpack.encode(_finish(pieces, command.max_bytes_per_second))
        except OSError as error:
            answer = b"-" + msgspec.msgpack.encode(Failed(str(error), error.errno or errno.EIO))
        except Uncleanable as error:
            answer = b"-" + msgspec.msgpack.encode(Failed(str(error)))
        _write(target, answer)


def _finish(pieces: Iterable[Piece | Scanned | Rewritten], max_bytes_per_second: float) -> object:
    """Do all pieces of some work, no faster than that; its result."""
    began, moved_bytes = time.monotonic(), 0
    for piece in pieces:
        if not isinstance(piece, Piece):
            return piece
        moved_bytes += piece.moved_bytes
        ahead_s = moved_bytes / max_bytes_per_second - (time.monotonic() - began)
        if ahead_s > 0.01:
            time.sleep(ahead_s)
    raise AssertionError("the work ended without a result")


def _listen(source: IO[bytes], commands: SimpleQueue[bytes]) -> None:
    while (command := _read(source)) is not None:
        commands.put(command)
    os._exit(0)


def _write(target: IO[bytes], data: bytes) -> None:
    target.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    target.flush()


def _read(source: IO[bytes]) -> bytes | None:
    """The next frame; None at the end."""
    head = source.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    data = source.read(int.from_bytes(head, "big"))
    return data if len(data) == int.from_bytes(head, "big") else None


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
