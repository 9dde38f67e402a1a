"""Groups of kafka-python's consumers, and what its admin client asks of groups."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack, closing
from typing import Any

import kafka
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.compat.members import send
from tests.compat.topics import create_topic
from tests.conftest import Name
from tests.processes import until

TIMEOUT_S = 30.0
POLL_MS = 500
"""kafka-python 3.0.12 may stop for ever when a poll ends while its answer to SyncGroup is being taken."""


def consumer(bootstrap: str, group: str, *topics: str, **settings: Any) -> Any:
    quick = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 5000,
        "heartbeat_interval_ms": 200,
        "fetch_max_wait_ms": 50,
        "metadata_max_age_ms": 1000,
    }
    return kafka.KafkaConsumer(*topics, **{**quick, **settings})


class Reader:
    """A consumer that reads in a thread until it is told to leave."""

    def __init__(self, made: Any) -> None:
        self.consumer = made
        self.values: Counter[bytes] = Counter()
        self.assigned: set[Any] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            for messages in self.consumer.poll(timeout_ms=POLL_MS).values():
                self.values.update(message.value for message in messages)
            self.assigned = set(self.consumer.assignment())
        self.consumer.close()

    def leave(self) -> None:
        self._is_over.set()
        self._thread.join(20)
        assert not self._thread.is_alive()


def test_a_group_shares_and_members_leave(group_bootstrap: str, new_name: Name) -> None:
    topic, group = create_topic(group_bootstrap, new_name("py"), 4), new_name("group")
    with ExitStack() as stack:
        readers = [Reader(consumer(group_bootstrap, group, topic)) for _ in range(2)]
        stack.callback(readers[0].leave)
        until(lambda: [len(reader.assigned) for reader in readers] == [2, 2], TIMEOUT_S, "half each")
        send(group_bootstrap, topic, [b"%d" % n for n in range(100)], 4)
        until(lambda: sum(len(reader.values) for reader in readers) == 100, TIMEOUT_S, "all records")
        assert not readers[0].values.keys() & readers[1].values.keys()
        readers[1].leave()
        until(lambda: len(readers[0].assigned) == 4, TIMEOUT_S, "all partitions")


def test_offsets_and_admin(group_bootstrap: str, new_name: Name) -> None:
    topic, group = create_topic(group_bootstrap, new_name("py-admin"), 2), new_name("group")
    places = [TopicPartition(topic, number) for number in range(2)]
    with closing(kafka.KafkaAdminClient(bootstrap_servers=group_bootstrap)) as admin:
        reader = consumer(group_bootstrap, group, enable_auto_commit=False)
        with closing(reader):
            reader.subscribe([topic])
            until(
                lambda: [reader.poll(POLL_MS)] and len(reader.assignment()) == 2, TIMEOUT_S, "an assignment"
            )
            reader.commit({places[0]: OffsetAndMetadata(3, "note", -1)})
            assert reader.committed(places[0], metadata=True) == OffsetAndMetadata(3, "note", -1)
            assert reader.committed(places[1]) is None
            described = admin.describe_groups([group])[group]
            assert (described["group_state"], described["protocol_type"]) == ("Stable", "consumer")
            assert len(described["members"]) == 1
        listed = {each["group_id"]: each for each in admin.list_groups()}
        assert listed[group]["group_state"] == "Empty"
        found = admin.list_group_offsets([group])[group]
        assert {place: position.offset for place, position in found.items()} == {places[0]: 3}
        deleted = admin.delete_groups([group])
        assert deleted[group] in (None, "OK") or deleted[group].errno == 0
        assert group not in {each["group_id"] for each in admin.list_groups()}
