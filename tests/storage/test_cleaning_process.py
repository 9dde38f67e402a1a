"""The work of compaction in another process: the same result, and nothing left of it in any case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from millstream.storage.batch_walk import Uncleanable
from millstream.storage.cleanable import find_cleanable
from millstream.storage.cleaning_process import CleaningProcess, CleaningProcessDied
from millstream.storage.compaction import Compaction
from tests.processes import until
from tests.storage.ledger import COMPACTED, Ledger, Producer, as_table
from tests.storage.logs import FaultyDisk

FAST = 1e12
CONFIG = replace(COMPACTED, segment_bytes=8000)


def make(folder: Path) -> tuple[Ledger, Compaction]:
    ledger = Ledger(FaultyDisk(), str(folder), CONFIG)
    sequenced, aborter = Producer(1), Producer(2)
    for number in range(200):
        ledger.append((b"%d" % (number % 30), b"x" * 60), (b"b", None), codec=number % 5)
        ledger.append((b"c%d" % (number % 9), b"y"), producer=sequenced)
        ledger.begin(aborter)
        ledger.append((b"b", b"never"), producer=aborter)
        ledger.end(aborter, is_commit=False)
    ledger.log.roll()
    cleanable = find_cleanable(ledger.log, ledger.log.end_offset, ledger.clock.now_ms())
    return ledger, Compaction(cleanable, ledger.clock.now_ms())


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".snapshot"}


def test_it_does_what_is_done_here_to_the_byte(tmp_path: Path) -> None:
    here, _ = make(tmp_path / "here")
    here.clean(rolls=False)
    there, compaction = make(tmp_path / "there")
    process = CleaningProcess()
    try:
        for _ in range(2):  # it goes on with another job
            scanned = process.scan(compaction.prepare(1 << 20, 0.9, bytes(range(16))), FAST)
        assert len(scanned.groups) > 1
        for group in scanned.groups:
            compaction.begin_swap(group, process.rewrite(group, FAST))
            compaction.make_durable()
            compaction.finish_swap()
        compaction.finish(scanned.cleaned_until)
        assert psutil.Process(process.pid).nice() == 19
    finally:
        process.close()
    there.trash.empty()
    assert files(Path(there.folder)) == files(Path(here.folder))
    assert as_table(there.read()) == there.table()
    assert not psutil.pid_exists(process.pid)


def test_damage_and_errors_are_told(tmp_path: Path) -> None:
    ledger, compaction = make(tmp_path)
    job = compaction.prepare(1 << 20, 0.9, bytes(16))
    path = Path(ledger.log.segments[1].path)
    good = path.read_bytes()
    process = CleaningProcess()
    try:
        path.write_bytes(good[:500] + bytes([good[500] ^ 1]) + good[501:])
        with pytest.raises(Uncleanable, match=path.name):
            process.scan(job, FAST)
        path.write_bytes(good)
        scanned = process.scan(job, FAST)
        os.rename(ledger.folder, ledger.folder + "-delete")
        with pytest.raises((FileNotFoundError, Uncleanable), match="No such file"):
            process.rewrite(scanned.groups[0], FAST)
    finally:
        process.close()


def test_a_process_that_is_killed_is_noticed(tmp_path: Path) -> None:
    _, compaction = make(tmp_path)
    job = compaction.prepare(1 << 20, 0.9, bytes(16), chunk_bytes=1000)
    process = CleaningProcess()
    threading.Timer(0.3, process.kill).start()
    began = time.monotonic()
    with pytest.raises(CleaningProcessDied):
        process.scan(job, 1000)
    assert time.monotonic() - began < 10
    with pytest.raises(CleaningProcessDied):
        process.scan(job, FAST)
    process.close()


def test_it_is_no_faster_than_it_may_be(tmp_path: Path) -> None:
    _, compaction = make(tmp_path)
    job = compaction.prepare(1 << 20, 0.9, bytes(16), chunk_bytes=1000)
    process = CleaningProcess()
    try:
        process.scan(job, FAST)
        began = time.monotonic()
        scanned = process.scan(job, 200_000)
        assert time.monotonic() - began > scanned.read_bytes / 200_000 * 0.9
    finally:
        process.close()


PARENT = """
import sys, time
from millstream.storage.cleaning_process import CleaningProcess
process = CleaningProcess()
print(process.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_the_broker_however_that_ends() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()

    def is_gone() -> bool:
        return not child.is_running() or child.status() == psutil.STATUS_ZOMBIE

    until(is_gone, 30, "the child ends")
