"""Link: a worker's connections to the brokers, kept from task to task.

Spark uses a Python worker for many tasks. A task that finds the link of the last one saves the thread, the
connections and the metadata: most of what a small micro-batch would cost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from millstream.client.cluster import Cluster
from millstream.client.face import LoopThread
from millstream.streams.loaded import keep_loaded
from millstream.streams.reading.settings import SourceSettings

_links: dict[tuple[int, str, str, int], Link] = {}
"""By process (a fork has no threads), brokers and what they are told of the client."""


class Link:
    """An event loop in a thread of its own, and a cluster on it."""

    def __init__(self, settings: SourceSettings) -> None:
        self.thread = LoopThread("millstream-task")
        self.cluster = self.thread.run(_cluster(settings))

    def close(self) -> None:
        try:
            self.thread.run(self.cluster.close())
        finally:
            self.thread.close()


async def _cluster(settings: SourceSettings) -> Cluster:
    return Cluster(
        settings.bootstrap, client_id=settings.client_id, request_timeout_ms=settings.request_timeout_ms
    )


@contextmanager
def link_for(settings: SourceSettings) -> Iterator[Link]:
    """This process's link to these brokers. It is kept, but for one that an error or a reader who left
    early may have left with an answer under way.
    """
    key = (os.getpid(), settings.bootstrap, settings.client_id, settings.request_timeout_ms)
    link = _links.pop(key, None)
    if link is None:
        link = Link(settings)
    keep_loaded("source")
    try:
        yield link
    except BaseException:
        link.close()
        raise
    if key in _links:  # another reader in this process was quicker
        link.close()
    else:
        _links[key] = link


def close_links() -> None:
    """Close what is kept in this process."""
    while _links:
        _links.popitem()[1].close()
