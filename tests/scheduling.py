"""Which worker of a parallel run has which files of tests, and when.

A file stays on one worker. The simulations are one piece of work, which goes first and runs beside everything
else: they need nothing but time of processors, and their processes take only what the others leave (see
tests/simulation/seeds.py). What needs Spark within the tests' own process is another one, so that only one
worker starts it. Then comes what takes long, so that no worker is left alone with it at the end.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

TOGETHER = {
    "simulations": ("tests/simulation/",),
    "spark": ("tests/streams/", "tests/cli/test_streams.py"),
}
"""Pieces of work, in the order in which they begin: paths, or what paths begin with."""

LONG = (
    "tests/failover/",
    "tests/client/test_kafka_leaders.py",
    "tests/client/test_consumer_groups.py",
    "tests/client/test_consumer_replicas.py",
    "tests/streams/test_sink_exactly_once.py",
    "tests/behaviour/test_compaction.py",
    "tests/test_examples.py",
    "tests/compat/test_folders.py",
    "tests/test_readme.py",
    "tests/client/",
    "tests/compat/",
    "tests/model/",
    "tests/crash/",
    "tests/cli/",
    "tests/behaviour/",
    "tests/controller/",
    "tests/storage/",
)
"""What takes longer comes earlier, and all else thereafter."""

BESIDE = {"tests/streams/test_app_cluster.py": "tests/streams/test_sink_exactly_once.py"}
"""Files that go with another one's piece: both need the same Spark cluster."""


def piece_of(path: str) -> str:
    """The piece of work that a file belongs to: its own path, or the name of several files' piece."""
    path = BESIDE.get(path, path)
    if path in LONG:
        return path
    for name, beginnings in TOGETHER.items():
        if path.startswith(beginnings):
            return name
    return path


def rank_of(path: str) -> int:
    """Where in the order a file comes."""
    order = [*TOGETHER, *LONG]
    piece = piece_of(path)
    if piece in order:
        return order.index(piece)
    found = [order.index(beginning) for beginning in LONG if path.startswith(beginning)]
    return min(found, default=len(order))


def in_order(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Tests in the order of their files; those of a file keep theirs."""
    return sorted(items, key=lambda item: rank_of(item.nodeid.partition("::")[0]))


class Scheduling(LoadFileScheduling):
    """Gives workers pieces of work in the order of the tests."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return piece_of(super()._split_scope(nodeid))
