"""Clusters of real processes that are killed, stopped and grown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from millstream.testing import Cluster

MakeCluster = Callable[..., Cluster]

QUICK = {"replica.lag.time.max.ms": "2000", "replica.fetch.wait.max.ms": "200"}
"""Settings under which a test need not wait long for a follower to be missed."""


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """Starts clusters; what still runs at the end is killed."""
    made: list[Cluster] = []

    def make(brokers: int = 3, **options: object) -> Cluster:
        config = {**QUICK, **options.pop("config", {})}  # type: ignore[dict-item]
        cluster = Cluster(brokers, config, **options)  # type: ignore[arg-type]
        made.append(cluster)
        return cluster.start()

    yield make
    for cluster in made:
        cluster.stop(is_clean=False)


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster()
