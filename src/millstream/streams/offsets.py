"""Offsets of partitions as Spark keeps them: JSON of the form {"topic": {"0": 123}}, keys in order.

Spark compares offsets as text, so one state has one text: topics by name, partitions by number. Beside the
topics stand two names that no topic has. "@start" says where the batch begins that ends here, where that is
not the end of the one before: where a stream began that began at a moving place (the end, a time), where it
went on after a topic was made anew, and where partitions begin that are new and lost their first records, so
that a restart which has to do the batch again begins there again.
"@ids" has the ids of the topics that these offsets are of; checkpoints of brokers without ids have none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from millstream.model import TopicPartition

START = "@start"
IDS = "@ids"

Offsets = dict[TopicPartition, int]


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """Offsets as Spark is given them."""
    by_topic: dict[str, Any] = {}
    for partition in sorted(offsets):
        by_topic.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return by_topic


def from_json(document: Any) -> Offsets:
    """Offsets out of such a document (or its text); ValueError if it is of another form."""
    if isinstance(document, str):
        document = json.loads(document)
    if not isinstance(document, dict):
        raise ValueError(f'offsets have the form {{"topic": {{"0": 123}}}}, not {document!r}')
    found: Offsets = {}
    for topic, partitions in document.items():
        if topic in (START, IDS):
            continue
        if not isinstance(partitions, dict):
            raise ValueError(f'topic {topic} needs the form {{"0": 123}}, not {partitions!r}')
        for index, offset in partitions.items():
            if not str(index).isdecimal() or isinstance(offset, bool) or not isinstance(offset, int):
                raise ValueError(f"{topic}: partition {index!r} at offset {offset!r} are not two numbers")
            found[TopicPartition(topic, int(index))] = offset
    return found


def start_of(document: Mapping[str, Any]) -> Offsets | None:
    """Where the batch that ends here begins, if that is said."""
    return from_json(document[START]) if START in document else None


def ids_of(document: Mapping[str, Any]) -> dict[str, str]:
    """The ids of the topics, as far as they were known."""
    return dict(document.get(IDS, {}))
