"""Whatever is written, whenever it is compacted: a reader's table is the one that was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.protocol.batch import decode_records
from millstream.storage.producer_state import Producer as ProducerEntry
from tests.simulation.disk import SimDisk
from tests.simulation.world import World
from tests.storage.ledger import COMPACTED, Ledger, Producer, as_table

KEYS = [b"a", b"b", b"", b"key" * 20]

pairs = st.lists(
    st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=60))), min_size=1, max_size=6
)
codecs = st.sampled_from([0, 0, 0, 1, 2, 3, 4])
appends = st.tuples(st.just("append"), st.integers(0, 2), pairs, codecs)
transactions = st.tuples(
    st.just("transact"),
    st.integers(3, 4),
    st.lists(pairs, min_size=1, max_size=2),
    codecs,
    st.booleans(),
    st.booleans(),
)
cleanings = st.tuples(
    st.just("clean"),
    st.sampled_from([1, 1 << 20, 1 << 20]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([0, 600, 1200]),
)
steps = st.one_of(
    appends,
    appends,
    transactions,
    transactions,
    cleanings,
    cleanings,
    st.tuples(st.just("append"), st.just(4), pairs, codecs),
    st.tuples(st.just("end"), st.just(4), st.booleans(), st.booleans()),
    st.tuples(st.just("reopen"), st.booleans()),
)


class Run:
    """The steps, done on a ledger that lies on a disk in memory."""

    def __init__(self) -> None:
        self.ledger = Ledger(SimDisk(World(0), lambda: 0).mount(), "/data", COMPACTED)
        # 0 writes without an id, 1 and 2 with sequences, 3 and 4 in transactions
        self.producers = [None, *map(Producer, (11, 12, 13, 14))]

    def append(self, who: int, what: list[tuple[bytes, bytes | None]], codec: int) -> None:
        producer = self.producers[who]
        if producer is not None and who >= 3 and producer.offsets is None:
            self.ledger.begin(producer)
        self.ledger.append(*what, codec=codec, producer=producer)

    def end(self, who: int, is_commit: bool, bumps_epoch: bool) -> None:
        producer = self.producers[who]
        assert producer is not None
        self.ledger.end(producer, is_commit=is_commit, bumps_epoch=bumps_epoch)

    def transact(
        self, who: int, batches: list[list[tuple[bytes, bytes | None]]], codec: int, *how: bool
    ) -> None:
        for what in batches:
            self.append(who, what, codec)
        self.end(who, *how)

    def clean(self, map_bytes: int, rolls: bool, wait_ms: int) -> None:
        ledger = self.ledger
        ledger.clock.ms += wait_ms
        before = {record.offset for record in ledger.read(is_committed=False)}
        done = ledger.clean(map_bytes, rolls=rolls)
        if done is not None:
            self.check_cleaned(before)

    def reopen(self, is_clean: bool) -> None:
        before = producer_states(self.ledger)
        self.ledger.log.flush()
        self.ledger.reopen(is_clean=is_clean)
        assert producer_states(self.ledger) == before

    def check(self) -> None:
        """What holds after every step."""
        ledger = self.ledger
        found = ledger.read()
        assert as_table(found) == ledger.table()
        assert all(record == ledger.written[record.offset] for record in found)
        assert not ledger.aborted.intersection(record.offset for record in found)
        everything = [record.offset for record in ledger.read(is_committed=False)]
        assert all(earlier < later for earlier, later in pairwise(everything))
        assert ledger.is_swept()

    def check_cleaned(self, before: set[int]) -> None:
        """What a compaction leaves, and what it must not have taken."""
        ledger, log = self.ledger, self.ledger.log
        now_ms, cleaned_until = ledger.clock.now_ms(), log.cleaned_until
        present = {record.offset for record in ledger.read(is_committed=False)}
        assert present <= before
        last: dict[bytes, int] = {}
        for offset, record in ledger.written.items():
            if offset < cleaned_until and offset not in ledger.aborted:
                assert record.key is not None
                last[record.key] = offset
        for offset in sorted(before):
            record = ledger.written[offset]
            if offset >= cleaned_until:
                assert offset in present
            elif offset in ledger.aborted or last[record.key or b""] != offset:
                assert offset not in present
            elif record.value is not None:
                assert offset in present
            elif offset not in present:
                assert now_ms - ledger.first_cleaned_ms[offset] >= log.config.delete_retention_ms
        for offset in range(log.start_offset, log.end_offset):
            at_least = next((one for one in sorted(present) if one >= offset), None)
            if at_least is not None:
                found = next(iter(self.records_from(offset)))
                assert found == at_least

    def records_from(self, offset: int) -> Iterator[int]:
        log = self.ledger.log
        while True:
            part = log.read(offset, 300)
            yield from [record.offset for record in decode_records(part.data, from_offset=offset)]
            offset = part.next_offset


def producer_states(ledger: Ledger) -> dict[int, tuple[int, int, int, int]]:
    return {one.producer_id: _state(one) for one in ledger.log.producers}


def _state(one: ProducerEntry) -> tuple[int, int, int, int]:
    return one.epoch, one.last_sequence, one.last_offset, one.transaction_start


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.lists(steps, min_size=5, max_size=40))
def test_a_compacted_log_keeps_what_readers_and_producers_need(program: list[tuple[Any, ...]]) -> None:
    run = Run()
    for name, *arguments in program:
        method: Callable[..., None] = getattr(run, name)
        method(*arguments)
        run.check()
    ledger = run.ledger
    run.clean(1 << 20, True, 0)
    run.check()
    # without snapshots the producers' state comes from what compaction left
    before = producer_states(ledger)
    ledger.log.flush()
    ledger.log.close()
    for name in ledger.disk.listdir(ledger.folder):
        if name.endswith(".snapshot"):
            ledger.disk.remove(f"{ledger.folder}/{name}")
    ledger.open(is_clean=False, recovery_point=ledger.log.end_offset)
    assert producer_states(ledger) == before
    assert as_table(ledger.read()) == ledger.table()
