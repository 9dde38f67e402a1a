"""A ZooKeeper server that the registry's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.zookeeper import ZookeeperServer


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a server."""
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper") / "alone") as server:
        yield server.address
