"""GroupCommitter: shows lag tools how far a query has come, right after each batch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from millstream.client.admin_blocking import Admin
from millstream.errors import MillstreamError
from millstream.streams.offsets import Offsets, from_json
from millstream.streams.reading.errors import log

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


class GroupCommitter(StreamingQueryListener):
    """Commits what a query has read for a consumer group, so that `millstream group lag` shows it.

        committer = GroupCommitter("localhost:9092", "billing", query="billing")
        spark.streams.addListener(committer)

    Spark tells a source that a batch is done only when the next one begins; this hears it at once. `query` is
    the name of the query (`queryName`); without it every query of the session counts. Commits go out from a
    thread of its own, the newest offsets only: Spark's listeners never wait for a broker. What Spark goes by
    is its checkpoint, so a commit that fails is a line in the log.
    """

    def __init__(self, bootstrap: str, group: str, *, query: str | None = None) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._query = query
        self._waiting: Offsets = {}
        self._is_closed = False
        self._is_busy = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="millstream-committer", daemon=True)
        self._thread.start()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        if self._query is None or progress.name == self._query:
            for source in progress.sources:
                self.note(source.endOffset)

    def note(self, end: Any) -> None:
        """Commit these offsets (as Spark has them) soon; those of another kind of source are passed over."""
        try:
            offsets = from_json(end)
        except ValueError:
            return
        with self._changed:
            self._waiting |= offsets
            self._changed.notify_all()

    def flush(self, timeout: float = 10) -> bool:
        """Wait until all that was noted is committed, or could not be; false if that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._is_busy, timeout)

    def close(self, timeout: float = 10) -> None:
        """Commit what is waiting and end the thread."""
        self.flush(timeout)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(timeout)

    def _work(self) -> None:
        admin: Admin | None = None
        try:
            while True:
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._waiting or self._is_closed)
                    if not self._waiting:
                        return
                    offsets, self._waiting = self._waiting, {}
                    self._is_busy = True
                try:
                    admin = admin or Admin(self._bootstrap)
                    admin.alter_group_offsets(self._group, offsets)
                except MillstreamError as error:
                    log.warning("offsets of group %s were not committed: %s", self._group, error)
        finally:
            if admin is not None:
                admin.close()
