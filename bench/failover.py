"""`python -m bench.failover`: how long writes pause when a leader is killed, or stopped cleanly.

One confluent-kafka producer with acks=all, idempotence and short back-offs writes a record every 2 ms to a
partition on three brokers. The pause of a round is the time from `kill -9` of the leader (or from SIGTERM)
to the next acknowledgement of a record that was sent after it.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from confluent_kafka import Producer

from millstream.testing import Cluster

TOPIC = "failover"
CLIENT = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 0,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 20,
    "topic.metadata.refresh.interval.ms": 100,
    "log_level": 0,
    "error_cb": lambda _: None,
}


class Stream:
    """Records sent and acknowledged, with their times."""

    def __init__(self, bootstrap: str) -> None:
        self.failed: list[str] = []
        self._acknowledged: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, **CLIENT})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(30)

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            sent_at = time.monotonic()

            def delivered(error: Any, _: Any, sent_at: float = sent_at) -> None:
                if error is not None:
                    self.failed.append(str(error))
                else:
                    self._acknowledged.append((sent_at, time.monotonic()))

            self._producer.produce(TOPIC, b"%d" % number, on_delivery=delivered)
            self._producer.poll(0.002)

    def pause_after(self, at: float, timeout_s: float = 60) -> float:
        """From `at` to the first acknowledgement of what was sent after it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            later = [
                acknowledged_at for sent_at, acknowledged_at in self._acknowledged[-500:] if sent_at > at
            ]
            if later:
                return min(later) - at
            time.sleep(0.001)
        raise TimeoutError(f"no acknowledgement within {timeout_s} s")

    def longest_gap(self, since: float) -> float:
        times = [at for _, at in self._acknowledged if at >= since]
        return max((b - a for a, b in itertools.pairwise([since, *times])), default=0.0)


def measure(cluster: Cluster, rounds: int, is_clean: bool) -> list[float]:
    """The pauses of some rounds, in seconds; the cluster is whole before each."""
    pauses = []
    stream = Stream(cluster.bootstrap)
    try:
        for _ in range(rounds):
            cluster.wait_until_healthy()
            time.sleep(0.5)
            leader = cluster.leader(TOPIC)
            at = time.monotonic()
            if is_clean:
                cluster.stop_broker(leader)
                time.sleep(0.2)
                pauses.append(stream.longest_gap(at))
            else:
                cluster[leader].kill()
                pauses.append(stream.pause_after(at))
            cluster.start_broker(leader)
    finally:
        stream.stop()
    if stream.failed:
        raise RuntimeError(f"{len(stream.failed)} records failed, such as: {stream.failed[0]}")
    return pauses


@click.command()
@click.option("--rounds", default=20, show_default=True)
@click.option("--clean", "is_clean", is_flag=True, help="Stop the leader cleanly instead of killing it.")
@click.option("--zookeeper", is_flag=True, help="Three ZooKeeper servers as the registry, not SQLite.")
@click.option("--session-ms", default=6000, show_default=True, help="The registry's session time-out.")
@click.option(
    "--tick-ms",
    default=500,
    show_default=True,
    help="ZooKeeper's tickTime: it ends sessions at whole ticks, up to 1.5 of them after the time-out.",
)
def main(rounds: int, is_clean: bool, zookeeper: bool, session_ms: int, tick_ms: int) -> None:
    """Print the median and the worst of the pauses, as JSON."""
    with ExitStack() as stack:
        registry = None
        if zookeeper:
            from tests.zookeeper import ZookeeperEnsemble

            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            ensemble = stack.enter_context(ZookeeperEnsemble(folder, tick_ms=tick_ms))
            registry = f"zookeeper://{ensemble.address}/millstream"
        config = {"registry.session.timeout.ms": str(session_ms)}
        cluster = stack.enter_context(Cluster(3, config, registry=registry))
        cluster.create_topic(TOPIC, 1, replication_factor=3, configs={"min.insync.replicas": "2"})
        pauses = measure(cluster, rounds, is_clean)
    result = {
        "what": "clean stop" if is_clean else "kill -9",
        "registry": "zookeeper" if zookeeper else "sqlite",
        "rounds": rounds,
        "median_ms": round(statistics.median(pauses) * 1000, 1),
        "max_ms": round(max(pauses) * 1000, 1),
        "all_ms": [round(pause * 1000) for pause in pauses],
    }
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
