"""Why records were not written in time: the last error of what they waited for."""

from __future__ import annotations

from functools import partial

from millstream.client.batch_builder import Batch
from millstream.client.cluster import OnRetry
from millstream.client.metadata import Metadata
from millstream.client.producer_line import Line
from millstream.client.wording import counted
from millstream.errors import KafkaError, LeaderNotAvailable, RequestTimedOut

IDENTITY = "identity"


class Hindrances:
    """Errors by what is missing (a producer id, a topic's leaders, a connection), until that is there."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._errors: dict[str, KafkaError] = {}

    def met(self, name: str) -> OnRetry:
        """What takes the errors of one thing that is missing."""
        return partial(self.add, name)

    def add(self, name: str, error: KafkaError) -> None:
        self._errors[name] = error.again()

    def over(self, name: str) -> None:
        self._errors.pop(name, None)

    def too_late(self, line: Line, batch: Batch, timeout_ms: int, *, has_identity: bool) -> RequestTimedOut:
        """The error of a batch whose time is up."""
        sent = f"after {batch.attempts} tries" if batch.attempts else "unsent"
        count = batch.count or batch.builder.count
        message = f"{counted(count, 'record')} for {line.name} not written in {timeout_ms} ms ({sent})"
        last = self._of(line, has_identity=has_identity) or batch.last_error
        if last is None:
            return RequestTimedOut(message)
        error = RequestTimedOut(f"{message}; the last error was: {last}")
        error.__cause__ = last
        return error

    def _of(self, line: Line, *, has_identity: bool) -> KafkaError | None:
        """What keeps a line from sending, in the order in which it needs things."""
        if not has_identity and IDENTITY in self._errors:
            return self._errors[IDENTITY]
        if f"topic {line.topic}" in self._errors:
            return self._errors[f"topic {line.topic}"]
        topic = self._metadata.topics.get(line.topic)
        partition = None if topic is None else topic.partitions.get(line.index)
        if partition is None:
            return None
        if partition.leader not in self._metadata.nodes:
            return LeaderNotAvailable(f"partition {line.name} has no leader at the moment")
        return self._errors.get(f"broker {partition.leader}")
