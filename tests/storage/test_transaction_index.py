from __future__ import annotations

from pathlib import Path
from threading import Lock
from time import thread_time

import pytest

from millstream.storage.os_disk import OsDisk
from millstream.storage.transaction_index import AbortedTransaction, TransactionIndex
from tests.storage.logs import FaultyDisk

FIRST = AbortedTransaction(7, 10, 20, 15)
SECOND = AbortedTransaction(9, 15, 30, 31)


def test_the_file_is_kafkas(tmp_path: Path) -> None:
    path = tmp_path / "t.txnindex"
    index = TransactionIndex(OsDisk(), str(path), Lock(), is_new=True)
    assert not path.exists()
    index.add(FIRST)
    index.add(SECOND)
    data = path.read_bytes()
    assert data[:34] == bytes.fromhex(
        "0000 0000000000000007 000000000000000a 0000000000000014 000000000000000f"
    )
    assert len(data) == 68
    assert list(TransactionIndex(OsDisk(), str(path), Lock()).entries()) == [FIRST, SECOND]


def test_transactions_that_end_beyond_a_truncation_go(tmp_path: Path) -> None:
    path = tmp_path / "t.txnindex"
    index = TransactionIndex(OsDisk(), str(path), Lock(), is_new=True)
    index.add(FIRST)
    index.add(SECOND)
    index.keep_below(30)
    assert list(index.entries()) == [FIRST]
    assert path.stat().st_size == 34
    index.keep_below(30)
    index.keep_below(0)
    assert list(index.entries()) == []
    assert path.stat().st_size == 0


def test_a_torn_entry_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "t.txnindex"
    TransactionIndex(OsDisk(), str(path), Lock(), is_new=True).add(FIRST)
    path.write_bytes(path.read_bytes() + b"torn")
    index = TransactionIndex(OsDisk(), str(path), Lock())
    assert list(index.entries()) == [FIRST]
    index.add(SECOND)
    assert list(TransactionIndex(OsDisk(), str(path), Lock()).entries()) == [FIRST, SECOND]


@pytest.mark.parametrize("torn", [b"\xc5" * 34, bytes(34), b"\x7f" * 34])
def test_what_a_power_loss_left_in_place_of_entries_goes(tmp_path: Path, torn: bytes) -> None:
    """Else it would hide what comes behind it: the last stable offset of garbage is above all others."""
    path = tmp_path / "t.txnindex"
    TransactionIndex(OsDisk(), str(path), Lock(), is_new=True).add(FIRST)
    good = path.read_bytes()
    path.write_bytes(good + torn + good)
    index = TransactionIndex(OsDisk(), str(path), Lock())
    index.keep_below(100)
    assert list(index.entries()) == [FIRST]
    path.write_bytes(torn + good)
    index = TransactionIndex(OsDisk(), str(path), Lock())
    index.keep_below(0)
    assert list(index.entries()) == []
    assert path.stat().st_size == 0


def test_on_a_full_disk_entries_wait_in_memory(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.room_bytes = 0
    path = tmp_path / "t.txnindex"
    index = TransactionIndex(disk, str(path), Lock(), is_new=True)
    index.add(FIRST)
    assert list(index.entries()) == [FIRST]
    with pytest.raises(OSError, match="No space"):
        index.spill()
    disk.room_bytes = 1 << 62
    index.add(SECOND)
    assert list(TransactionIndex(disk, str(path), Lock()).entries()) == [FIRST, SECOND]


def test_many_transactions_are_added_and_found_in_no_time(tmp_path: Path) -> None:
    """A segment may hold a million of them, and each fetch of committed records asks for some."""
    index = TransactionIndex(OsDisk(), str(tmp_path / "t.txnindex"), Lock(), is_new=True)
    count = 50_000
    entries = [
        AbortedTransaction(number, 10 * number, 10 * number + 5, 10 * number) for number in range(count)
    ]
    started = thread_time()
    for entry in entries:
        index.add(entry)
    assert thread_time() - started < 3
    assert list(index.ended_from(10 * count - 15)) == entries[-2:]
    assert list(index.ended_from(10 * count - 14)) == entries[-1:]
    assert list(index.ended_from(10 * count)) == []
    assert list(index.ended_from(0)) == entries
    started = thread_time()
    for _ in range(1000):
        next(index.ended_from(10 * count - 15))
    assert thread_time() - started < 0.1
