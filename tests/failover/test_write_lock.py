"""A process that is stopped in the midst of a write to the SQLite registry: everything else goes on."""

from __future__ import annotations

import sqlite3
import threading
import time

from millstream.testing import Cluster
from tests.failover.load import Reader, Writer, check, read_all

SESSION_S = 6.0


def test_records_go_on_while_nobody_can_write_to_the_registry(cluster: Cluster) -> None:
    """Sessions live on; what has to be written down waits, and is done afterwards."""
    topic = cluster.create_topic("t", 3, replication_factor=3, configs={"min.insync.replicas": "2"})
    with Writer(cluster.bootstrap, topic) as writer, Reader(cluster.bootstrap, topic, "g") as reader:
        writer.wait_for(100)
        before = cluster.health()
        held = sqlite3.connect(cluster.data / "registry.db", isolation_level=None)
        held.execute("BEGIN IMMEDIATE")
        made = threading.Thread(
            target=cluster.create_topic, args=("later", 1), kwargs={"replication_factor": 3}
        )
        made.start()
        until = time.monotonic() + 1.5 * SESSION_S
        while time.monotonic() < until:
            writer.wait_for(20)
        assert made.is_alive()
        held.execute("ROLLBACK")
        held.close()
        made.join(30)
        assert not made.is_alive()
        cluster.wait_until_healthy()
        assert cluster.health().controller == before.controller
        writer.wait_for(100)
        writer.stop()
        reader.wait_for(set(writer.acknowledged))
        assert reader.errors == []
    assert read_all(cluster.bootstrap, "later", 1) == {0: []}
    check(read_all(cluster.bootstrap, topic, 3), writer)
