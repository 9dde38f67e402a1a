"""The names of what Apache Kafka's own consumers and producers can be told."""

from __future__ import annotations

_TEXT = """
acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset
batch.size buffer.memory check.crcs client.dns.lookup client.id client.rack compression.gzip.level
compression.lz4.level compression.type compression.zstd.level connections.max.idle.ms
default.api.timeout.ms delivery.timeout.ms enable.auto.commit enable.idempotence enable.metrics.push
exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id
group.protocol group.remote.assignor heartbeat.interval.ms interceptor.classes
internal.leave.group.on.close isolation.level key.deserializer key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
max.request.size partition.assignment.strategy partitioner.adaptive.partitioning.enable
partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
retry.backoff.ms send.buffer.bytes session.timeout.ms socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms transaction.timeout.ms transactional.id value.deserializer
value.serializer
"""

NAMES = frozenset(_TEXT.split())
_FAMILIES = ("metadata.", "metric.", "metrics.", "sasl.", "security.", "ssl.")


def is_kafkas(name: str) -> bool:
    """Whether a client of Kafka's takes such a setting."""
    return name in NAMES or name.startswith(_FAMILIES)
