"""The number of a broker's process, in a file of its folder.

The process keeps the file locked as long as it runs, so that one that is started beside it, and refused,
leaves the file alone. A file that is not locked was left by a process that was killed.
"""

from __future__ import annotations

import fcntl
import logging
import os

log = logging.getLogger(__name__)


class PidFile:
    """It is for people: where the folder's disk has failed, a broker that has others goes on without."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1

    def take(self) -> None:
        """Write the number of this process, unless another one has the file or this one has written it."""
        try:
            while self._descriptor < 0:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_found():
                    number = b"%d\n" % os.getpid()
                    os.pwrite(self._descriptor, number, 0)
                    os.ftruncate(self._descriptor, len(number))
                else:  # who had it has removed it meanwhile
                    self._close()
        except BlockingIOError:
            self._close()
        except OSError as error:
            self._close()
            log.warning("%s does not say which process this is: %s", self._path, error)

    def release(self) -> None:
        """Remove the file if it is this process's."""
        try:
            if self._descriptor >= 0 and self._is_found():
                os.unlink(self._path)
        except OSError:
            pass  # with its disk gone, it says nothing any more
        self._close()

    def _is_found(self) -> bool:
        """Whether others who look find the file that this process has."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
