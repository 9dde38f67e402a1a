"""Topics made through librdkafka's admin client, for tests whose own client is slow to start or cannot."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, NewTopic

from tests.processes import until

TIMEOUT_S = 20.0


def create_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> str:
    """A new topic that the broker lists already; config keys with underscores for dots."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    named = {key.replace("_", "."): value for key, value in config.items()}
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=named)]).values():
        future.result(TIMEOUT_S)
    until(lambda: name in admin.list_topics(timeout=TIMEOUT_S).topics, TIMEOUT_S, f"topic {name} is listed")
    return name
