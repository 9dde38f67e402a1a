"""An answer that comes later, without an event loop: shards make them, the runtime waits on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Promise(Generic[T]):
    """Kept or broken once; later attempts do nothing. Whoever listens is told at once."""

    __slots__ = ("_error", "_is_done", "_listeners", "_value")

    def __init__(self) -> None:
        self._is_done = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._listeners: list[Callable[[Promise[T]], None]] = []

    @property
    def is_done(self) -> bool:
        return self._is_done

    def keep(self, value: T) -> None:
        """Give the answer."""
        self._finish(value, None)

    def break_(self, error: Exception) -> None:
        """Say why there will be none."""
        self._finish(None, error)

    def result(self) -> T:
        """The answer; raises the error it was broken with. Only once it is done."""
        assert self._is_done
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def listen(self, listener: Callable[[Promise[T]], None]) -> None:
        """Call `listener` when it is done, at once if it is."""
        if self._is_done:
            listener(self)
        else:
            self._listeners.append(listener)

    def _finish(self, value: T | None, error: Exception | None) -> None:
        if self._is_done:
            return
        self._is_done = True
        self._value, self._error = value, error
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(self)
