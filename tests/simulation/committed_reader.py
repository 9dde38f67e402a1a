"""A reader of committed records: its partitions from their start on, what it reads in a ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from random import Random

from millstream.errors import error_for
from millstream.protocol.batch import decode_records
from millstream.protocol.fetched import whole_batches
from millstream.protocol.messages import FetchRequest
from tests.simulation.brokers import Address, Brokers
from tests.simulation.client import RETRY_S
from tests.simulation.consumer import text_of
from tests.simulation.ledger import CommittedRead, Ledger, Place

FETCH_VERSION = 12
READ_COMMITTED = 1


class Unreadable(OSError):
    """A partition cannot be read now."""


async def read_committed(
    brokers: Brokers,
    place: Place,
    offset: int,
    max_bytes: int,
    max_wait_ms: int = 100,
    address: Address | None = None,
) -> tuple[list[tuple[int, str]], int]:
    """The committed values from an offset on, and the offset to go on at. OSError to try again later.

    Told by the leader, or by the broker at `address`, which may be a follower.
    """
    await brokers.leader(*place)
    partition = FetchRequest.FetchPartition(
        partition=place[1],
        current_leader_epoch=brokers.epoch(*place),
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
    )
    topic = FetchRequest.FetchTopic(topic=place[0], partitions=[partition])
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=READ_COMMITTED,
        topics=[topic],
    )
    if address is None:
        answer = await brokers.ask_leader(*place, request, FETCH_VERSION)
    else:
        answer = await brokers.client(address, "replica").request(request, FETCH_VERSION)
    found = answer.responses[0].partitions[0]
    if found.error_code:
        name, address = error_for(found.error_code).__name__, address or await brokers.leader(*place)
        brokers.client(address).log(f"{address[0]} refuses a fetch of {place} at {offset}: {name}")
        brokers.forget_leader(*place)
        raise Unreadable(name)
    data = memoryview(found.records or b"")
    aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()]
    values = [
        (record.offset, text_of(record))
        for record in decode_records(data, from_offset=offset, aborted=aborted)
    ]
    for header, _ in whole_batches(data, True):
        offset = max(offset, header.next_offset)
        brokers.saw_epoch(*place, header.leader_epoch)
    return values, offset


class CommittedReader:
    """Reads for ever."""

    def __init__(self, name: str, brokers: Brokers, ledger: Ledger, random: Random) -> None:
        self.name = name
        self.brokers = brokers
        self.ledger = ledger
        self.random = random
        self.position: dict[Place, int] = {}
        self.is_hasty = False
        """Whether it takes as much as it can get, and waits for nothing."""
        self.counts: Counter[str] = Counter()
        self.reads_anywhere = False
        """Whether it reads from any replica, another one each time."""

    async def run(self, places: Iterable[Place]) -> None:
        self.position = dict.fromkeys(places, 0)
        while True:
            for place, offset in list(self.position.items()):
                try:
                    max_bytes = 1_000_000 if self.is_hasty else self.random.choice((1, 1000, 1_000_000))
                    wait_ms = 0 if self.is_hasty else self.random.choice((0, 100, 500))
                    where = self.random.choice(self.brokers.bootstrap) if self.reads_anywhere else None
                    values, following = await read_committed(
                        self.brokers, place, offset, max_bytes, wait_ms, where
                    )
                except Unreadable as error:
                    if str(error) == "OffsetOutOfRange":
                        self.ledger.complaints.append(f"{self.name}: {place}@{offset} is out of range")
                        return
                    await asyncio.sleep(self.random.uniform(0.0, RETRY_S))
                    continue
                except OSError:
                    await asyncio.sleep(self.random.uniform(0.0, RETRY_S))
                    continue
                if self.reads_anywhere:
                    self.counts["reads anywhere"] += len(values)
                self.ledger.reads += [CommittedRead(self.name, place, at, value) for at, value in values]
                self.position[place] = self.ledger.positions[self.name, place] = following
            await asyncio.sleep(self.random.uniform(0.0, 0.05))
