"""Readers go on while segments are replaced under them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from millstream.protocol.batch import decode_records
from tests.storage.ledger import COMPACTED, Ledger, as_table
from tests.storage.logs import FaultyDisk
from tests.storage.test_threads import Crowd


def reader(ledger: Ledger, seed: int) -> Callable[[], None]:
    random = Random(seed)

    def read() -> None:
        log = ledger.log
        offset = random.randint(0, log.end_offset)
        for _ in range(20):
            found = log.read(offset, 600)
            assert found.next_offset > offset or not found.data
            records = decode_records(found.data, from_offset=offset)
            for record in records:  # the newest may not be noted yet
                assert record == ledger.written.get(record.offset, record)
            offset = found.next_offset

    return read


def table_reader(ledger: Ledger, tables: list[set[bytes]]) -> Callable[[], None]:
    """Reads from the start: whatever was the last record of its key all the time is found."""

    def read() -> None:
        settled = set(tables[-1])
        found = as_table(ledger.read(is_committed=False))
        assert settled <= found.keys()

    return read


@pytest.fixture
def _eager_threads() -> Iterator[None]:
    """Let threads take turns often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_eager_threads")
def test_readers_survive_compactions(tmp_path: Path) -> None:
    disk = FaultyDisk(max_open_files=8)  # descriptors come and go under the readers
    ledger = Ledger(disk, str(tmp_path), replace(COMPACTED, segment_bytes=3000))
    random = Random(5)
    tables: list[set[bytes]] = [set()]
    rounds = 0

    def flush() -> None:
        ledger.log.flush()

    crowd = Crowd(reader(ledger, 1), reader(ledger, 2), table_reader(ledger, tables), flush)
    with crowd:
        while rounds < 12 and not crowd.wrong:
            for _ in range(60):
                key = b"%d" % random.randrange(100)
                ledger.append((key, b"x" * random.randrange(60)), codec=random.choice([0, 0, 0, 3]))
            rounds += ledger.clean() is not None
            tables.append({record.key for record in ledger.written.values() if record.key is not None})
    assert not crowd.wrong, crowd.wrong[0]
    assert crowd.turns > 100
    assert as_table(ledger.read()) == ledger.table()
