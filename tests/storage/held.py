"""Threads that stop where a test wants something else to come in between."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Held:
    """Work in a thread that is held where it says so, until it is let go."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._is_here, self._may_go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=work)

    def begin(self) -> None:
        self._thread.start()
        assert self._is_here.wait(10)

    def wait(self) -> None:
        """Be held, if this is the thread."""
        if threading.current_thread() is self._thread:
            self._is_here.set()
            assert self._may_go.wait(10)

    def release(self) -> None:
        self._may_go.set()

    def let_go(self) -> None:
        """Let it go on, and end."""
        self.release()
        self._thread.join(10)
        assert not self._thread.is_alive()
