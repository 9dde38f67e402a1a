"""A replicated topic that is compacted on each of its replicas by itself, now and then, whoever leads.

Each key has the value that was acknowledged last, for every reader of the whole topic and on every replica;
what replicas hold besides may differ.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.brokers import Brokers
from tests.simulation.history import History
from tests.simulation.host import Process
from tests.simulation.leader_client import LeaderClient
from tests.simulation.table import TOPIC, TableReader, Writer

NAME = TOPIC
REST_S = 0.4
"""How long writers pause at most."""


class CompactedTopic:
    """Those who write and read the topic, and what they found."""

    def __init__(
        self,
        start: Callable[[str], Process],
        make_brokers: Callable[[Process], Brokers],
        history: History,
        random: Random,
    ) -> None:
        """`start` starts a client's process; `history` takes the complaints."""
        self.settings = {
            "log.cleaner.backoff.ms": random.choice(("200", "1000")),
            "log.cleaner.min.cleanable.ratio": random.choice(("0.01", "0.4")),
            "log.cleaner.dedupe.buffer.size": random.choice(("2000", "1000000")),
            "log.roll.ms": random.choice(("1500", "6000")),  # the internal topics' segments, too
        }
        self.configs = {
            "cleanup.policy": "compact",
            "internal.segment.bytes": random.choice(("1000", "4000")),
            "index.interval.bytes": "200",
            "delete.retention.ms": "600000",
            "file.delete.delay.ms": random.choice(("0", "1000")),
        }
        self.counts: Counter[str] = Counter()
        self._start = start
        self._make_brokers = make_brokers
        self._complaints = history.complaints
        self._writers: list[Writer] = []
        self._working: list[asyncio.Future[Any]] = []
        self._reader: TableReader

    def begin(self) -> None:
        for name in ("left", "right"):
            process, client = self._client(f"table-{name}")
            writer = Writer(name, client, process.random)
            writer.rest_s = REST_S
            self._writers.append(writer)
            self._working.append(asyncio.ensure_future(process.call(writer.run())))
        process, client = self._client("table-reader")
        self._reader = TableReader(client, process.random)
        self._reader.rest_s = 2.0
        process.start(self._reader.run())

    def _client(self, name: str) -> tuple[Process, LeaderClient]:
        process = self._start(name)
        return process, LeaderClient(self._make_brokers(process), NAME, 0)

    async def end(self) -> None:
        """Let the writers come to their end; what is there then is what was acknowledged."""
        for writer in self._writers:
            writer.is_over = True
        await asyncio.gather(*self._working)
        expected = {key: value for writer in self._writers for key, value in writer.table.items()}
        process, client = self._client("table-auditor")
        found = await process.call(TableReader(client, process.random).read())
        if found != expected:
            wrong = {
                key: (found.get(key), expected.get(key))
                for key in {*found, *expected}
                if found.get(key) != expected.get(key)
            }
            self._complaints.append(f"the topic {NAME} has others than were acknowledged: {wrong}")
        self.counts["table acks"] = sum(writer.acked for writer in self._writers)
        self.counts["tables"] = self._reader.tables
