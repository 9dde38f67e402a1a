"""What a broker's answer means for the batches of a request: written, to be sent again, or failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.client.batch_builder import Batch
from millstream.client.metadata import Metadata, Node
from millstream.client.producer_buffer import RecordBuffer
from millstream.client.producer_delivery import NO_OFFSET
from millstream.client.producer_line import Line
from millstream.client.producer_request import Flight
from millstream.client.producer_settings import ProducerSettings
from millstream.client.producer_split import split
from millstream.errors import (
    ConcurrentTransactions,
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    KafkaError,
    MessageTooLarge,
    NetworkException,
    NotEnoughReplicasAfterAppend,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    UnknownProducerId,
    error_for,
)
from millstream.protocol.messages import ProduceResponse

SEQUENCE_ERRORS = frozenset(
    {OutOfOrderSequenceNumber.code, UnknownProducerId.code, InvalidProducerEpoch.code}
)
"""The broker's idea of where the producer is differs from the producer's."""

MAYBE_WRITTEN = frozenset({RequestTimedOut.code, NotEnoughReplicasAfterAppend.code})
"""Errors that do not say that nothing was written."""

SAME_LEADER = MAYBE_WRITTEN | {ConcurrentTransactions.code}
"""Errors that say nothing of who leads."""

BUSY_MS = 5.0
"""How long to wait while the transaction before is being ended."""

_PLACE = ProduceResponse.PartitionProduceResponse


class Answers:
    """Settles batches. `on_refused` hears of each that failed for good, before those who wait for it do."""

    def __init__(
        self,
        buffer: RecordBuffer,
        settings: ProducerSettings,
        metadata: Metadata,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._buffer = buffer
        self._metadata = metadata
        self._settings = settings
        self._loop = loop
        self.on_refused: Callable[[Batch, Exception], None] = lambda _batch, _error: None
        self.may_retry: Callable[[Batch], bool] = lambda _: True

    def take(self, flight: Flight, response: ProduceResponse | None) -> None:
        """Go through an answer; None, where none was asked for (acks=0), is the best of news."""
        places: dict[tuple[str, int], _PLACE] = {}
        for topic in response.responses if response is not None else ():
            name = topic.name or flight.names.get(topic.topic_id, "")
            for part in topic.partition_responses:
                places[name, part.index] = part
        for line, batch in flight.batches:
            place = places.get((line.topic, line.index))
            if response is None:
                self._written(line, batch, NO_OFFSET, -1)
            elif place is None:
                self._again(line, batch, NetworkException("the answer leaves it out"), is_in_doubt=True)
            elif place.error_code in (0, DuplicateSequenceNumber.code):
                self._written(line, batch, place.base_offset, place.log_append_time_ms)
            else:
                self._failed(line, batch, place)
                if response.node_endpoints and place.current_leader is not None:
                    self._follow(line, place.current_leader, response.node_endpoints)

    def _follow(
        self,
        line: Line,
        leader: ProduceResponse.LeaderIdAndEpoch,
        endpoints: list[ProduceResponse.NodeEndpoint],
    ) -> None:
        """Turn to the leader that the answer names, at once."""
        nodes = [Node(each.node_id, each.host, each.port, each.rack) for each in endpoints]
        if self._metadata.take_leader(line.topic, line.index, leader.leader_id, leader.leader_epoch, nodes):
            line.needs_leader = False
            line.retry_at = 0.0

    def lost(self, flight: Flight, error: BaseException) -> None:
        """No answer came: each batch may have been written or not."""
        for line, batch in flight.batches:
            line.needs_leader = True
            self._again(line, batch, error, is_in_doubt=True)

    def _written(self, line: Line, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        line.in_flight.remove(batch)
        if (batch.producer_id, batch.producer_epoch) == (line.producer_id, line.producer_epoch):
            line.is_confirmed = True
        if not batch.is_done:
            self._buffer.release(batch)
            batch.written(base_offset, log_append_time_ms)

    def _failed(self, line: Line, batch: Batch, place: _PLACE) -> None:
        kind = error_for(place.error_code)
        error = kind(f"partition {line.name}: {reason_of(place) or kind().message}")
        is_transactional = self._settings.transactional_id is not None
        if self._settings.is_idempotent and place.error_code in SEQUENCE_ERRORS:
            if not line.is_oldest(batch):
                self._again(line, batch, error, is_in_doubt=False)
                return
            if not is_transactional:
                # The broker has neither this batch nor any behind it, so all may go under a new epoch.
                self._again(line, batch, error, is_in_doubt=False)
                line.restart()
                return
        elif error.retriable:
            line.needs_leader = line.needs_leader or place.error_code not in SAME_LEADER
            self._again(line, batch, error, is_in_doubt=place.error_code in MAYBE_WRITTEN)
            return
        line.in_flight.remove(batch)
        if isinstance(error, MessageTooLarge) and not batch.is_done and self._split(line, batch):
            return
        self.refuse(batch, error)
        if self._settings.is_idempotent and not is_transactional:
            line.restart()

    def _split(self, line: Line, batch: Batch) -> bool:
        """Queue the halves of a batch that is too large, if it has several records."""
        halves = split(batch)
        with self._buffer.lock:
            if halves:
                self._buffer.replace(batch, halves)
                self._buffer.active[line] = None
            for half in halves:
                line.put_back(half)
        return bool(halves)

    def _again(self, line: Line, batch: Batch, error: BaseException, *, is_in_doubt: bool) -> None:
        """Queue a batch again, or let it fail where it was tried often enough."""
        line.in_flight.remove(batch)
        if batch.is_done:
            return
        batch.is_in_doubt = batch.is_in_doubt or is_in_doubt
        is_hopeless = is_in_doubt and not (isinstance(error, KafkaError) and error.retriable)
        if batch.attempts > self._settings.retries or is_hopeless or not self.may_retry(batch):
            self.refuse(batch, error if isinstance(error, Exception) else NetworkException(str(error)))
            return
        if isinstance(error, KafkaError):
            batch.last_error = error.again()
        with self._buffer.lock:
            line.put_back(batch)
            self._buffer.active[line] = None
        pause_ms = min(
            self._settings.retry_backoff_ms * 2 ** min(batch.attempts - 1, 10),
            self._settings.retry_backoff_max_ms,
        )
        if isinstance(error, ConcurrentTransactions):
            pause_ms = BUSY_MS
        line.retry_at = self._loop.time() + pause_ms / 1000

    def refuse(self, batch: Batch, error: Exception) -> None:
        """Let a batch fail for good, unless it has already."""
        if batch.is_done:
            return
        self._buffer.release(batch)
        self.on_refused(batch, error)
        batch.failed(error)


def reason_of(answer: _PLACE) -> str | None:
    """The error's message, and what was wrong with the first bad record (KIP-467)."""
    details = [
        f"record {error.batch_index}: {error.batch_index_error_message}"
        for error in answer.record_errors
        if error.batch_index_error_message
    ]
    message = answer.error_message or ""
    return "; ".join(filter(None, [message, *(one for one in details[:1] if one not in message)])) or None
