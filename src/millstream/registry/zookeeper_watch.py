"""A watch of one node in ZooKeeper that stays, made of ZooKeeper's, which fire once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import EventType

from millstream.registry.ensemble import Ensemble

logger = logging.getLogger(__name__)


class ZookeeperWatch:
    """Says that a node changed: its data, its existence or its list of children.

    Requests of a session are answered in order. So a read that is made after the watch was set anew, even
    before that is answered, either sees a change or is followed by the next event.

    What was written after the watch was asked for and before the server had set it gives no event; the
    numbers of the last writes show it then. For a node that does not exist, any write may have been it.
    """

    def __init__(self, ensemble: Ensemble, path: str, changed: Callable[[], None]) -> None:
        self._ensemble = ensemble
        self._path = path
        self._changed = changed
        self._since: int | None = ensemble.client.last_zxid
        self._is_over = False
        self._set()

    def cancel(self) -> None:
        self._is_over = True

    def _set(self) -> None:
        client = self._ensemble.client
        client.exists_async(self._path, self._event).rawlink(self._answered)
        client.get_children_async(self._path, self._event).rawlink(self._answered)

    # In kazoo's threads.

    def _event(self, event: Any) -> None:
        if event.type != EventType.NONE:  # the end of a connection, after which all watches are made anew
            self._ensemble.post(self._fire)

    def _answered(self, result: Any) -> None:
        error = result.exception
        if error is None and not isinstance(result.value, list):
            self._ensemble.post(self._compare, result.value)
        elif error is not None and not isinstance(error, (NoNodeError, KazooException)):
            logger.warning("a watch of %s could not be set: %s", self._path, error)

    # On the event loop.

    def _fire(self) -> None:
        if not self._is_over and self._ensemble.is_connected:
            self._set()
            self._changed()

    def _compare(self, stat: Any) -> None:
        since, self._since = self._since, None
        if since is None or self._is_over:
            return
        last = self._ensemble.client.last_zxid if stat is None else max(stat.czxid, stat.mzxid, stat.pzxid)
        if last > since:
            self._changed()
