"""Producers that go on through crashes and remember what was acknowledged; and what must hold afterwards.

Every record's value is unique: who sent it, and its number.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from typing import NamedTuple

from millstream.protocol.batch import HEADER_SIZE, decode_records, encode_batch
from millstream.protocol.record import Record
from tests.processes import until
from tests.wire import Wire, batches, end_offset, fetch, new_producer, produce_request, produced

RECONNECT_S = 0.05
IDLE_S = 0.005
VISIBLE_S = 10.0
PIPELINE = 5
RETRIABLE = {3, 5, 6, 7, 56}


class Sent(NamedTuple):
    """A batch on its way: its first number, its values, its bytes."""

    first: int
    values: list[bytes]
    data: bytes


class LoadProducer(threading.Thread):
    """One producer on one partition, up to five batches under way, reconnecting for as long as it takes.

    An idempotent one resends what was not acknowledged, in order, with the same sequence numbers; a plain
    one gives it up and goes on with new records, as it cannot know what became of it.
    """

    def __init__(
        self, address: str, topic: str, partition: int, *, is_idempotent: bool, acks: int, seed: int
    ) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.topic = topic
        self.partition = partition
        self.is_idempotent = is_idempotent
        self.acks = acks
        self.acknowledged: dict[int, bytes] = {}
        """Offset to value."""
        self.allowance = 0
        """How many records it may have sent in all; the load of one round is bounded by it."""
        self.failure: BaseException | None = None
        self._random = random.Random(seed)
        self._label = b"%s-%d" % (b"idempotent" if is_idempotent else b"plain", seed)
        self._next = 0
        self._unanswered: deque[Sent] = deque()
        self._producer: tuple[int, int] | None = None
        self._is_over = threading.Event()

    @property
    def label(self) -> bytes:
        return self._label

    def finish(self, timeout_s: float) -> None:
        """Send nothing more; an idempotent producer first gets answers to all it sent."""
        self._is_over.set()
        self.join(timeout_s)
        if self.failure is not None:
            raise self.failure
        assert not self.is_alive(), f"{self._label!r} still waits for {len(self._unanswered)} answers"

    def run(self) -> None:
        try:
            while not self._is_over.is_set() or (self.is_idempotent and self._unanswered):
                try:
                    self._one_connection()
                except OSError:
                    time.sleep(RECONNECT_S)
        except BaseException as failure:  # looked at in finish()
            self.failure = failure

    def _one_connection(self) -> None:
        with Wire(self.address, timeout_s=10) as wire:
            if self.is_idempotent and self._producer is None:
                self._producer = new_producer(wire)
            if not self.is_idempotent:
                self._unanswered.clear()
            for sent in self._unanswered:
                self._send(wire, sent)
            while True:
                while len(self._unanswered) < PIPELINE and self._may_send():
                    sent = self._make()
                    self._unanswered.append(sent)
                    self._send(wire, sent)
                if not self._unanswered:
                    if self._is_over.wait(IDLE_S):
                        return
                    continue
                answer = produced(wire.receive()[1])
                if answer.error_code in RETRIABLE:
                    raise ConnectionError(f"error {answer.error_code}: try again")
                assert answer.error_code == 0, answer
                done = self._unanswered.popleft()
                for place, value in enumerate(done.values):
                    self.acknowledged[answer.base_offset + place] = value

    def _may_send(self) -> bool:
        return self._next < self.allowance and not self._is_over.is_set()

    def _send(self, wire: Wire, sent: Sent) -> None:
        wire.send(produce_request(self.topic, sent.data, partition=self.partition, acks=self.acks), 9)

    def _make(self) -> Sent:
        pick = self._random
        values = []
        first = self._next
        for _ in range(pick.randint(1, 20)):
            filler = pick.randbytes(pick.choice((0, 10, 1000, 8000)))
            values.append(b"%s/%d/%s" % (self._label, self._next, filler))
            self._next += 1
        now_ms = int(time.time() * 1000)
        producer_id, epoch = self._producer or (-1, -1)
        data = encode_batch(
            [Record(value=value, timestamp=now_ms) for value in values],
            codec=pick.choice((0, 0, 1, 2, 3, 4)),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=first if self.is_idempotent else -1,
        )
        return Sent(first, values, bytes(data))


Decoded = dict[bytes, list[Record]]
"""The records of batches seen before, by their headers, which hold offsets and checksum."""


def read_all(address: str, topic: str, partition: int, known: Decoded | None = None) -> dict[int, bytes]:
    """Every record there is now by offset, with the offsets checked for gaps and order on the way."""
    found: dict[int, bytes] = {}
    known = {} if known is None else known
    with Wire(address) as wire:
        end = end_offset(wire, topic, partition=partition)
        while len(found) < end:
            answer = fetch(wire, topic, len(found), partition=partition, partition_max_bytes=8 << 20)
            assert answer.error_code == 0, answer
            whole = batches(answer.records)
            assert whole, f"nothing at {len(found)} though the log goes to {end}"
            for one in whole:
                records = known.get(one[:HEADER_SIZE])
                if records is None:
                    records = known[one[:HEADER_SIZE]] = decode_records(one)
                for record in records:
                    assert record.offset == len(found), f"offset {record.offset} follows {len(found) - 1}"
                    assert record.value is not None
                    found[record.offset] = record.value
    return found


def wait_for_end(address: str, topic: str, partition: int, end: int) -> None:
    """Until consumers see the log up to an offset; one that must be fsynced first is not seen at once."""
    with Wire(address) as wire:
        try:
            until(
                lambda: end_offset(wire, topic, partition=partition) >= end,
                VISIBLE_S,
                f"the log reaches {end}",
            )
        except TimeoutError:
            pass  # what is missing is said by the one who looks


def check(producers: list[LoadProducer], address: str, topic: str, partition: int, known: Decoded) -> int:
    """What must hold after any crash of the process; how many records there are."""
    concerned = [producer for producer in producers if producer.partition == partition]
    promised = [dict(producer.acknowledged) for producer in concerned]  # before reading: they go on meanwhile
    wait_for_end(
        address, topic, partition, max((offset + 1 for each in promised for offset in each), default=0)
    )
    found = read_all(address, topic, partition, known)
    for producer, acknowledged in zip(concerned, promised, strict=True):
        missing = [offset for offset, value in acknowledged.items() if found.get(offset) != value]
        elsewhere = {value: offset for offset, value in found.items()}
        assert not missing, (
            f"{producer.label!r}: {len(missing)} acknowledged records are not there, of {len(found)}: "
            + ", ".join(f"{offset} is at {elsewhere.get(acknowledged[offset])}" for offset in missing[:5])
        )
        label = producer.label + b"/"
        numbers = [int(value.split(b"/", 2)[1]) for value in found.values() if value.startswith(label)]
        assert numbers == sorted(numbers), f"{producer.label!r}: order was not kept"
        assert len(numbers) == len(set(numbers)), f"{producer.label!r}: records are there twice"
        if producer.is_idempotent:
            assert numbers == list(range(len(numbers))), f"{producer.label!r}: records were skipped"
    return len(found)


def acknowledged_in_all(producers: list[LoadProducer]) -> int:
    return sum(len(producer.acknowledged) for producer in producers)


def wait_for_more(producers: list[LoadProducer], more: int) -> None:
    """Go on when that many more records are acknowledged, in the middle of twice as many."""
    for producer in producers:
        producer.allowance += 2 * more // len(producers)
    goal = acknowledged_in_all(producers) + more
    until(
        lambda: acknowledged_in_all(producers) >= goal or any(not each.is_alive() for each in producers),
        60,
        f"{goal} records acknowledged",
    )
