"""Sessions of processes on one machine: a locked file each, with a heartbeat in it.

The file `<id>` holds a number of 8 bytes that its owner increases, and 8 bytes with the session's time-out in
milliseconds, by which all others judge it. It is locked (flock) by its owner for as long as that lives. The
kernel releases the lock when the process ends, however it ends, so that others see a death at once. A process
that is stopped keeps its lock but not its heartbeat: others declare it lost when they have seen the same
number for the session's time-out, on their own monotonic clock.

An owner's heartbeat counts from before it was written, and only if it was written before the deadline of
the one before. So the owner's deadline always comes before the others' verdict.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Callable, Iterable

from millstream.clock import Clock

_BEAT = struct.Struct("<qq")
BEATS_PER_TIMEOUT = 6
CERTAIN = 0.9
"""The share of the time-out that an owner counts on."""


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class OwnSession:
    """The session file of this process, and the thread that keeps its heart beating."""

    def __init__(self, folder: str, clock: Clock, timeout_s: float, on_lost: Callable[[], None]) -> None:
        self._folder = folder
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._path = ""
        self._descriptor = -1
        self._beats = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.deadline = float("-inf")
        """Until when the session certainly holds; written by one thread, read by any."""

    def make_file(self, session: int) -> None:
        """Create and lock the file of a new session."""
        self.close()
        self._path = os.path.join(self._folder, str(session))
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _try_lock(self._descriptor):
            raise BlockingIOError(f"the session file {self._path} is locked by another process")
        self.deadline = float("inf")
        self._beat()

    def start(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the heart and remove the file; the session ends for everyone who looks.

        A file that cannot be removed, as its disk failed, is unlocked at least: that says the same.
        """
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None
        self.deadline = float("-inf")
        if self._descriptor >= 0:
            try:
                os.unlink(self._path)
            except OSError:
                pass
            os.close(self._descriptor)
            self._descriptor = -1
        self._stop.clear()

    def _beat(self) -> bool:
        start = self._clock.monotonic()
        if start > self.deadline:
            return False
        self._beats += 1
        os.pwrite(self._descriptor, _BEAT.pack(self._beats, round(self._timeout_s * 1000)), 0)
        if self._clock.monotonic() > self.deadline:
            return False
        self.deadline = start + self._timeout_s * CERTAIN
        return True

    def _is_found(self) -> bool:
        """Whether others who look find this file: not if it was removed, or its disk unmounted."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _run(self) -> None:
        while not self._stop.wait(self._timeout_s / BEATS_PER_TIMEOUT):
            try:
                is_alive = self._is_found() and self._beat()
            except OSError:
                is_alive = self._clock.monotonic() <= self.deadline
            if not is_alive:
                self.deadline = float("-inf")
                self._on_lost()
                return


class _Other:
    __slots__ = ("beat", "descriptor", "seen_at", "timeout_s")

    def __init__(self, descriptor: int, seen_at: float, timeout_s: float) -> None:
        """`timeout_s` is for one that has not written its own yet."""
        self.descriptor = descriptor
        self.beat = b""
        self.seen_at = seen_at
        self.timeout_s = timeout_s


class OtherSessions:
    """What this process knows of the other sessions' lives. Used by one thread."""

    def __init__(self, folder: str, clock: Clock, timeout_s: float) -> None:
        self._folder = folder
        self._clock = clock
        self._timeout_s = timeout_s
        self._others: dict[int, _Other] = {}
        self._gone: set[int] = set()

    @property
    def is_empty(self) -> bool:
        """Whether there is no other session, as far as is known."""
        return not self._others and not self._gone

    def know(self, sessions: Iterable[int]) -> None:
        """Look after exactly these sessions from now on."""
        wanted = set(sessions)
        for session in self._others.keys() - wanted:
            os.close(self._others.pop(session).descriptor)
        self._gone &= wanted
        for session in wanted - self._others.keys():
            try:
                descriptor = os.open(self._path(session), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._gone.add(session)
            else:
                self._others[session] = _Other(descriptor, self._clock.monotonic(), self._timeout_s)

    def sweep(self, sessions: Iterable[int]) -> None:
        """Remove the files of sessions that never came to be; no other process may begin one meanwhile."""
        for name in set(os.listdir(self._folder)).difference(map(str, sessions)):
            os.unlink(os.path.join(self._folder, name))

    def lost(self) -> list[int]:
        """The sessions whose process ended, or was silent for the time-out."""
        lost = sorted(self._gone)
        for session, other in self._others.items():
            if _try_lock(other.descriptor):
                fcntl.flock(other.descriptor, fcntl.LOCK_UN)
                lost.append(session)
                continue
            beat = os.pread(other.descriptor, _BEAT.size, 0)
            now = self._clock.monotonic()
            if beat != other.beat:
                other.beat, other.seen_at = beat, now
                if len(beat) == _BEAT.size:
                    other.timeout_s = _BEAT.unpack(beat)[1] / 1000
            elif now - other.seen_at > other.timeout_s:
                lost.append(session)
        return lost

    def forget(self, session: int) -> None:
        """Remove what a session that is over has left."""
        other = self._others.pop(session, None)
        if other is not None:
            os.close(other.descriptor)
        self._gone.discard(session)
        try:
            os.unlink(self._path(session))
        except FileNotFoundError:
            pass

    def close(self) -> None:
        self.know(())

    def _path(self, session: int) -> str:
        return os.path.join(self._folder, str(session))
