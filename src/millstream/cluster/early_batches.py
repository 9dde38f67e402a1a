"""Batches that were refused because their partition is not here, and that come again, perhaps when it is.

Those in flight behind the first one have to wait for it then, too (see ProducerState.refuse): the log would
know nothing of the producer, and take them for its first.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from millstream.clock import Clock
from millstream.cluster.metadata import Topic
from millstream.errors import KafkaError
from millstream.protocol.batch import HEADER_SIZE, read_header
from millstream.protocol.types import Buffer
from millstream.storage.producer_state import NONE, REFUSED_MS

MAX_NOTED = 1000
"""Over all partitions; the oldest gives way."""


class Refused(NamedTuple):
    """The header of a batch, as it came, and why it was refused."""

    header: bytes
    error: KafkaError
    at: float


class EarlyBatches:
    """What is noted, by a partition's topic (as the request named it) and number, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._noted: dict[tuple[str | UUID, int, bytes], Refused] = {}

    def note(self, topic: str | UUID, index: int, data: Buffer, error: KafkaError) -> None:
        """A batch was refused. Sent again, and refused again, it is the same one."""
        if len(data) < HEADER_SIZE or (read := read_header(data)).magic != 2 or read.producer_id == NONE:
            return
        header = bytes(data[:HEADER_SIZE])
        key = topic, index, header
        self._noted.pop(key, None)
        self._noted[key] = Refused(header, error.again(), self._clock.monotonic())
        if len(self._noted) > MAX_NOTED:
            del self._noted[next(iter(self._noted))]

    def take(self, topic: Topic, index: int) -> list[tuple[Buffer, KafkaError]]:
        """What was refused of a partition that is here now, unless it is too long ago to come again."""
        if not self._noted:
            return []
        since = self._clock.monotonic() - REFUSED_MS / 1000
        named = topic.name, topic.topic_id
        found = [key for key in self._noted if key[0] in named and key[1] == index]
        taken = [self._noted.pop(key) for key in found]
        return [(each.header, each.error) for each in taken if each.at >= since]
