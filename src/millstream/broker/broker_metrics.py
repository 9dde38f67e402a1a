"""What the metrics tell of a broker's parts: connections, partitions, who is the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.broker.server import Broker
    from millstream.net.connection import Connection


class BrokerMetrics:
    """Reads the parts when somebody asks: they know it anyway."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        reading, listeners = broker.metrics.reading, broker.listeners.items()
        reading(
            "connections",
            "Connections of clients.",
            lambda: {(name,): len(listener.connections) for name, listener in listeners},
            "listener",
        )
        reading(
            "connections_refused",
            "Connections refused because of a limit.",
            lambda: {(name,): listener.refused.value for name, listener in listeners},
            "listener",
            kind="counter",
        )
        reading(
            "protocol_errors",
            "Connections closed because of bytes that are no valid request.",
            lambda: {(name,): listener.protocol_errors.value for name, listener in listeners},
            "listener",
            kind="counter",
        )
        reading(
            "unsent_bytes",
            "Bytes of answers that wait for slow readers.",
            lambda: sum(each.held_bytes for each in self._connections()),
        )
        reading(
            "slow_readers",
            "Connections whose next request waits until the client has read its answers.",
            lambda: sum(each.is_read_slowly for each in self._connections()),
        )
        reading(
            "threads_busy",
            "Threads that are at work: they read or flush one log dir, or check large batches.",
            lambda: {(pool.kind, pool.dir_path): pool.busy for pool in self._broker.threads},
            "kind",
            "log_dir",
        )
        reading(
            "threads_waiting",
            "Tasks that wait for one of these threads.",
            lambda: {(pool.kind, pool.dir_path): pool.waiting for pool in self._broker.threads},
            "kind",
            "log_dir",
        )
        reading("partitions", "Partitions that this broker holds.", lambda: len(self._broker.replicas))
        reading(
            "offline_partitions",
            "Partitions that cannot be served because their log dir failed, or because no log can be made.",
            lambda: len(self._broker.replicas.failed()),
        )
        reading(
            "damaged_partitions",
            "Partitions of which records were met that cannot be read.",
            lambda: sum(partition.log.damage is not None for partition in self._broker.replicas),
        )
        reading(
            "full_log_dirs",
            "Log dirs that could not be written for want of room.",
            lambda: sum(folder.is_full for folder in self._broker.store.dirs),
        )
        reading(
            "active_controller",
            "1 on the broker that is the controller, 0 on the others.",
            lambda: float(self._broker.controller.is_active),
        )
        reading(
            "unclean_elections",
            "Leaders that this broker elected as the controller although they may lack acknowledged records.",
            lambda: self._broker.controller.unclean_elections.value,
            kind="counter",
        )
        reading("controller_epoch", "The epoch of the controller that this broker follows.", self._epoch)
        reading("log_size_bytes", "Bytes on disk.", self._topic_sizes, "topic")
        reading("fetch_sessions", "Fetch sessions that are open.", lambda: len(self._broker.fetch_sessions))

    def _connections(self) -> list[Connection]:
        return [each for listener in self._broker.listeners.values() for each in list(listener.connections)]

    def _epoch(self) -> float:
        return self._broker.metadata.controller_epoch

    def _topic_sizes(self) -> dict[tuple[str, ...], float]:
        sizes: dict[tuple[str, ...], float] = {}
        for partition in self._broker.replicas:
            key = (partition.name.topic,)
            sizes[key] = sizes.get(key, 0) + partition.log.size_bytes
        return sizes
