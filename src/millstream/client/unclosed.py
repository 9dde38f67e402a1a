"""Clients that were forgotten instead of closed: their owner is told, as sockets and event loops do."""

from __future__ import annotations

import os
import sys
import warnings


class MustClose:
    """Something that holds threads or sockets from `_holds` to `_released`.

    If it is freed in between, what it holds is let go of and there is a ResourceWarning: `python -X dev`
    shows it, with the line that made the client if tracemalloc runs. In a process that was forked off
    nothing is held.
    """

    _held_in: int | None = None

    def _holds(self) -> None:
        self._held_in = os.getpid()

    def _released(self) -> None:
        self._held_in = None

    def _let_go(self) -> None:
        """Give back what is held, from any thread, without waiting."""
        raise NotImplementedError

    def __del__(self) -> None:
        if self._held_in is None or self._held_in != os.getpid():
            return
        self._held_in = None
        if not sys.is_finalizing():  # then the process gives everything back
            self._let_go()
        name = type(self).__name__
        advice = "use it in a `with` block, or close() it"
        warnings.warn(f"unclosed {name}: {advice}", ResourceWarning, stacklevel=1, source=self)
