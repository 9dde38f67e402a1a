"""A bank: money moves between accounts in transactions, and no reader ever sees a wrong total.

Each transfer writes pairs of what one account loses and another gains: one pair to its teller's own
partition, others to partitions that all tellers share. A part of the transfers is aborted, and tellers
are replaced in the middle of one. At every moment:

- no record of an aborted transfer is seen;
- in a partition that one teller writes to, what is seen up to the last stable offset sums up to nothing;
- where transactions overlap, the last stable offset may lie within one that is committed; but of a transfer
  of which anything is seen, all the rest is in the log already.

MILLSTREAM_BANK_SECONDS makes a longer run.
"""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.compat.committed import committed, reader
from tests.compat.test_transactions_clients import producer
from tests.compat.topics import create_topic
from tests.conftest import Name
from tests.processes import until
from tests.transactional import NEW_PRODUCE, TransactionalProducer, read_committed, visible
from tests.wire import Wire, fetch, values

SECONDS = float(os.environ.get("MILLSTREAM_BANK_SECONDS", "6"))
TELLERS = 4
SHARED = 3
PARTITIONS = TELLERS + SHARED
"""The tellers' own partitions come first."""
TIMEOUT_S = 20.0

_ENTRY = struct.Struct(">iqib")
"""A teller's number, the number of the transfer, the amount, and whether the transfer is to be committed."""


class Teller(threading.Thread):
    """Moves money with librdkafka, in the old protocol."""

    def __init__(self, bootstrap: str, topic: str, number: int, name: str, stop: threading.Event) -> None:
        super().__init__(name=f"teller {number}", daemon=True)
        self.bootstrap, self.topic, self.number, self.transactional_id = bootstrap, topic, number, name
        self.stop = stop
        self.transfers = 0
        self.kept: set[int] = set()
        self.failure: BaseException | None = None
        self.pick = random.Random(number)

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error

    def entries(self, is_kept: bool) -> Iterable[tuple[int, bytes]]:
        """The records of one transfer, each with its partition."""
        shared = self.pick.sample(range(TELLERS, PARTITIONS), self.pick.randint(0, SHARED))
        for partition in (self.number, *shared):
            amount = self.pick.randint(1, 1000)
            for signed in (-amount, amount):
                yield partition, _ENTRY.pack(self.number, self.transfers, signed, is_kept)

    def work(self) -> None:
        writer = producer(self.bootstrap, self.transactional_id)
        while not self.stop.is_set():
            fate = self.pick.random()
            writer.begin_transaction()
            for partition, value in self.entries(fate < 0.6):
                writer.produce(self.topic, value, partition=partition)
            if fate < 0.6:
                writer.commit_transaction(TIMEOUT_S)
                self.kept.add(self.transfers)
            else:
                writer.flush(TIMEOUT_S)
                if fate < 0.95:
                    writer.abort_transaction(TIMEOUT_S)
                else:
                    writer = producer(self.bootstrap, self.transactional_id)  # it left a transfer open
            self.transfers += 1


class NewTeller(Teller):
    """Moves money in the new protocol: brokers add partitions, each transaction has its epoch."""

    def work(self) -> None:
        with Wire(self.bootstrap) as wire:
            writer = TransactionalProducer(wire, self.transactional_id, self.topic).begun()
            while not self.stop.is_set():
                fate = self.pick.random()
                for partition, value in self.entries(fate < 0.6):
                    assert writer.send(value, partition=partition, version=NEW_PRODUCE).error_code == 0
                if fate < 0.6:
                    writer.commit()
                    self.kept.add(self.transfers)
                elif fate < 0.95:
                    writer.abort()
                else:
                    writer = TransactionalProducer(wire, self.transactional_id, self.topic).begun()
                self.transfers += 1
                time.sleep(0.001)


Transfer = tuple[int, int]
"""A teller and the number of its transfer."""


def amounts(values: Iterable[bytes | None]) -> Counter[Transfer]:
    """What is left of each transfer if these are its records. They must be ones that are to be committed."""
    totals: Counter[Transfer] = Counter()
    for value in values:
        assert value is not None
        teller, transfer, amount, is_kept = _ENTRY.unpack(value)
        assert is_kept, f"transfer {transfer} of teller {teller} was aborted, and yet is seen"
        totals[teller, transfer] += amount
    return totals


class Auditor(threading.Thread):
    """Follows all partitions with librdkafka."""

    def __init__(self, bootstrap: str, topic: str, stop: threading.Event) -> None:
        super().__init__(name="auditor", daemon=True)
        self.bootstrap, self.topic, self.stop = bootstrap, topic, stop
        self.books: list[Counter[Transfer]] = [Counter() for _ in range(PARTITIONS)]
        self.audits = 0
        self.seen = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error

    def note(self, partition: int, values: list[bytes | None]) -> None:
        self.books[partition].update(amounts(values))
        self.seen += len(values)

    def check(self, partition: int) -> None:
        """This partition was seen up to its last stable offset."""
        self.audits += 1
        if partition < TELLERS:
            torn = {key: total for key, total in self.books[partition].items() if total}
            assert not torn, f"wrong totals in partition {partition}: {torn}"

    def work(self) -> None:
        with closing(reader(self.bootstrap)) as consumer:
            consumer.assign([TopicPartition(self.topic, number, 0) for number in range(PARTITIONS)])
            while not self.stop.is_set():
                for message in consumer.consume(100, timeout=0.02):
                    error = message.error()
                    if error is None:
                        self.note(message.partition(), [message.value()])
                    elif error.code() == KafkaError._PARTITION_EOF:
                        self.check(message.partition())
                    else:
                        raise KafkaException(error)


class Inspector(Auditor):
    """Reads the partitions as they are now, again and again, in bytes; and then what lies behind."""

    def work(self) -> None:
        positions = [0] * PARTITIONS
        with Wire(self.bootstrap) as wire:
            while not self.stop.is_set():
                for partition in range(PARTITIONS):
                    found = read_committed(
                        wire, self.topic, positions[partition], partition, partition_max_bytes=50 << 20
                    )
                    self.note(partition, visible(found))
                    positions[partition] = found.last_stable_offset
                    self.check(partition)
                for partition in range(TELLERS, PARTITIONS):
                    self.look_behind(wire, partition, positions[partition])

    def look_behind(self, wire: Wire, partition: int, position: int) -> None:
        """What is missing of the transfers seen here is written already."""
        torn = +self.books[partition] + -self.books[partition]
        if not torn:
            return
        found = fetch(wire, self.topic, position, partition=partition, partition_max_bytes=50 << 20)
        totals = Counter(self.books[partition])
        for value in values(found.records):
            teller, transfer, amount, _ = _ENTRY.unpack(value or b"")
            if (teller, transfer) in torn:
                totals[teller, transfer] += amount
        wrong = {key: totals[key] for key in torn if totals[key]}
        assert not wrong, f"partition {partition} shows transfers that are not whole: {wrong}"


def test_no_reader_ever_sees_a_wrong_total(bootstrap: str, new_name: Name) -> None:
    topic = create_topic(bootstrap, new_name("bank"), PARTITIONS)
    stop = threading.Event()
    tellers = [
        (Teller if number < TELLERS // 2 else NewTeller)(bootstrap, topic, number, new_name("teller"), stop)
        for number in range(TELLERS)
    ]
    auditors = [Auditor(bootstrap, topic, stop), Inspector(bootstrap, topic, stop)]
    everybody: list[Teller | Auditor] = [*tellers, *auditors]
    for each in everybody:
        each.start()

    def is_enough() -> bool:
        return any(each.failure for each in everybody) or (
            all(len(one.kept) > 20 and one.transfers - len(one.kept) > 10 for one in tellers)
            and all(one.audits > 100 and one.seen > 100 for one in auditors)
        )

    stop.wait(SECONDS)
    try:
        until(is_enough, 60, "everybody has done a lot")
    finally:
        stop.set()
    for each in everybody:
        each.join(TIMEOUT_S)
        assert not each.is_alive(), f"{each.name} does not end"
        if each.failure is not None:
            raise each.failure

    # The last transfers of each teller may be on their way; a new teller of its id settles that.
    for teller in tellers:
        producer(bootstrap, teller.transactional_id)
    seen: set[Transfer] = set()
    for partition in committed(bootstrap, topic, PARTITIONS):
        totals = amounts(partition)
        assert not any(totals.values())
        seen |= set(totals)
    assert seen == {(teller.number, transfer) for teller in tellers for transfer in teller.kept}
