"""A transactional producer at work while brokers come and go."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer


class Transfers:
    """A transactional producer: each transaction writes its number to every partition, or aborts."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.failure: BaseException | None = None
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def wait_for(self, count: int, timeout_s: float = 60) -> None:
        start, deadline = len(self.committed), time.monotonic() + timeout_s
        while len(self.committed) < start + count:
            assert time.monotonic() < deadline, f"no {count} commits: {self.failure!r}"
            assert self.failure is None
            time.sleep(0.01)

    def check(self, found: dict[int, list[bytes]]) -> None:
        """What was committed is in every partition, once and in order; what was aborted in none."""
        for values in found.values():
            counts = Counter(values)
            assert [value for value, count in counts.items() if count > 1] == []
            missing = {b"c%d" % number for number in self.committed} - counts.keys()
            assert not missing, f"{len(missing)} of {len(self.committed)} committed ones are missing"
            assert not [value for value in values if value.startswith(b"x")]
            assert not {b"c%d" % number for number in self.aborted} & counts.keys()
            order = [int(value[1:]) for value in values]
            assert order == sorted(order)
        first = found[0]
        assert all(values == first for values in found.values())

    def _run(self) -> None:
        try:
            producer = Producer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "transactional.id": "transfers",
                    "transaction.timeout.ms": 60_000,
                    "socket.timeout.ms": 3000,
                    "retry.backoff.ms": 20,
                    "reconnect.backoff.max.ms": 200,
                    "log_level": 0,
                    "error_cb": lambda _: None,
                }
            )
            _retried(lambda: producer.init_transactions(60))
            for number in itertools.count():
                if self._stop.is_set():
                    return
                self._transact(producer, number)
        except BaseException as error:
            self.failure = error

    def _transact(self, producer: Producer, number: int) -> None:
        producer.begin_transaction()
        is_abort = number % 7 == 3
        value = b"%s%d" % (b"x" if is_abort else b"c", number)
        try:
            for index in range(self._partitions):
                producer.produce(self._topic, value, partition=index)
            if is_abort:
                producer.flush(30)
                _retried(lambda: producer.abort_transaction(60))
                self.aborted.append(number)
                return
            _retried(lambda: producer.commit_transaction(60))
            self.committed.append(number)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            _retried(lambda: producer.abort_transaction(60))
            self.aborted.append(number)


def _retried(work: Callable[[], object]) -> None:
    while True:
        try:
            work()
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
