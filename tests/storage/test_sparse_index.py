from __future__ import annotations

from pathlib import Path
from threading import Lock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.storage.offset_index import OffsetIndex
from millstream.storage.os_disk import OsDisk
from millstream.storage.time_index import TimeIndex
from tests.storage.logs import FaultyDisk


def make(tmp_path: Path, entries: list[tuple[int, int]], *, spill_at: int = 0) -> OffsetIndex:
    index = OffsetIndex(OsDisk(), f"{tmp_path}/i.index", Lock(), is_new=True)
    for number, entry in enumerate(entries):
        index.add(*entry)
        if number + 1 == spill_at:
            index.spill()
    return index


def test_the_files_are_kafkas(tmp_path: Path) -> None:
    index = make(tmp_path, [(3, 100), (70000, 4_000_000)])
    index.spill()
    assert (tmp_path / "i.index").read_bytes() == bytes.fromhex("00000003 00000064 00011170 003d0900")
    times = TimeIndex(OsDisk(), f"{tmp_path}/t.timeindex", Lock(), is_new=True)
    times.add(1_700_000_000_000, 5)
    times.spill()
    assert (tmp_path / "t.timeindex").read_bytes() == bytes.fromhex("0000018bcfe56800 00000005")


@pytest.mark.parametrize("spill_at", [0, 1, 700, 2000])
def test_the_floor_is_found_in_memory_and_in_the_file(tmp_path: Path, spill_at: int) -> None:
    entries = [(number * 10 + 5, number * 4096) for number in range(2000)]
    index = make(tmp_path, entries, spill_at=spill_at)
    assert len(index) == 2000
    assert index.floor(4) is None
    for key in (5, 6, 14, 15, 4094, 4095, 12345, 19994, 19995, 1 << 30):
        expected = max(entry for entry in entries if entry[0] <= key)
        assert index.floor(key) == expected
    assert index.floor(4096 * 77 + 5, column=1) == entries[77]
    assert index.last() == entries[-1]
    assert index.entries() == entries


@given(st.sets(st.integers(0, 5000), max_size=900), st.integers(-1, 5001), st.integers(0, 900))
def test_the_floor_is_the_largest_not_above(
    tmp_path_factory: pytest.TempPathFactory, keys: set[int], key: int, spill_at: int
) -> None:
    folder = tmp_path_factory.mktemp("index")
    entries = [(one, number) for number, one in enumerate(sorted(keys))]
    index = make(folder, entries, spill_at=spill_at)
    below = [entry for entry in entries if entry[0] <= key]
    assert index.floor(key) == (below[-1] if below else None)


@pytest.mark.parametrize("spill_at", [0, 40, 100])
@pytest.mark.parametrize("bound", [0, 1, 400, 401, 995, 2000])
def test_entries_from_a_bound_on_are_dropped(tmp_path: Path, spill_at: int, bound: int) -> None:
    entries = [(number * 10, number) for number in range(100)]
    index = make(tmp_path, entries, spill_at=spill_at)
    index.keep_below(bound, column=0)
    kept = [entry for entry in entries if entry[0] < bound]
    assert index.entries() == kept
    index.add(5000, 5000)
    assert index.last() == (5000, 5000)
    index.spill()
    again = OffsetIndex(OsDisk(), f"{tmp_path}/i.index", Lock())
    assert again.entries() == [*kept, (5000, 5000)]


def test_an_entry_cut_off_at_the_end_is_ignored(tmp_path: Path) -> None:
    make(tmp_path, [(1, 1), (2, 2)]).spill()
    path = tmp_path / "i.index"
    path.write_bytes(path.read_bytes() + b"\x00\x01\x02")
    index = OffsetIndex(OsDisk(), str(path), Lock())
    assert index.entries() == [(1, 1), (2, 2)]
    assert path.stat().st_size == 16


def test_a_file_padded_with_zeros_ends_where_its_entries_do(tmp_path: Path) -> None:
    path = tmp_path / "i.index"
    for entries in (
        [],
        [(0, 0)],
        [(0, 0), (5, 100)],
        [(5, 100)],
        [(number + 1, number * 9) for number in range(300)],
    ):
        data = b"".join(OffsetIndex.ENTRY.pack(*entry) for entry in entries)
        path.write_bytes(data + bytes(8 * 1000))
        index = OffsetIndex(OsDisk(), str(path), Lock())
        assert index.entries() == ([] if entries == [(0, 0)] else entries)
        index.close()


def test_a_missing_file_is_an_empty_index_and_is_not_made_by_reading(tmp_path: Path) -> None:
    index = OffsetIndex(OsDisk(), f"{tmp_path}/i.index", Lock())
    assert len(index) == 0
    assert index.floor(5) is None
    assert index.last() is None
    assert not (tmp_path / "i.index").exists()


def test_on_a_full_disk_entries_wait_in_memory(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.room_bytes = 0
    index = OffsetIndex(disk, f"{tmp_path}/i.index", Lock(), is_new=True)
    entries = [(number, number) for number in range(1200)]
    for entry in entries:
        index.add(*entry)
    assert index.floor(600) == (600, 600)
    with pytest.raises(OSError, match="No space"):
        index.spill()
    disk.room_bytes = 1 << 62
    index.spill()
    assert OffsetIndex(disk, f"{tmp_path}/i.index", Lock()).entries() == entries


def test_a_closed_index_is_not_opened_again(tmp_path: Path) -> None:
    make(tmp_path, [(1, 1)]).spill()
    index = OffsetIndex(OsDisk(), f"{tmp_path}/i.index", Lock())
    index.close()
    with pytest.raises(FileNotFoundError):
        index.last()
