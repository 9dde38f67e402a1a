"""The watches of one session, on its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from millstream.registry.contract import Callback


class Watches:
    """Callbacks by path. Changes told before the loop comes round to them give one call together."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._pending: dict[str, None] = {}

    def add(self, path: str, callback: Callback) -> Callable[[], None]:
        callbacks = self._callbacks.setdefault(path, [])
        callbacks.append(callback)

        def cancel() -> None:
            if callback in callbacks:
                callbacks.remove(callback)
            if not callbacks and self._callbacks.get(path) is callbacks:
                del self._callbacks[path]

        return cancel

    def has(self, path: str) -> bool:
        return path in self._callbacks

    def paths(self) -> list[str]:
        return list(self._callbacks)

    def changed(self, paths: Iterable[str] | None) -> None:
        """Have the watches of these paths called soon; of all paths if None."""
        watched = list(self._callbacks) if paths is None else [p for p in paths if p in self._callbacks]
        if watched and not self._pending:
            asyncio.get_running_loop().call_soon(self._fire)
        self._pending.update(dict.fromkeys(watched))

    def _fire(self) -> None:
        pending, self._pending = self._pending, {}
        loop = asyncio.get_running_loop()
        for path in pending:
            for callback in list(self._callbacks.get(path, ())):
                try:
                    callback(path)
                except Exception as error:
                    loop.call_exception_handler({"message": f"a watch of {path} failed", "exception": error})
