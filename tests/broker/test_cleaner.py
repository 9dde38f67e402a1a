"""Compaction in a broker, where the machine does not give it what it asks for."""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path

import pytest

from millstream.broker import cleaner
from millstream.errors import KafkaStorageError
from millstream.storage.compaction import Compaction
from tests.cluster.brokers import Brokers, run, until


async def fill(brokers: Brokers) -> None:
    """A table with enough in it to be compacted."""
    await brokers.create(
        "table",
        replicas=1,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.01",
        internal_segment_bytes="20000",
    )
    for _ in range(30):
        await brokers.send("table", bytes(2_000))


def test_without_another_process_a_thread_compacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when an upgrade has replaced the interpreter, or there may be no more processes: no disk failed."""
    monkeypatch.setattr(cleaner, "THREAD_BYTES", 0)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python-of-before"))

    async def test(brokers: Brokers) -> None:
        await fill(brokers)
        broker = brokers.running[1]
        await until(lambda: broker.cleaner.runs.value > 0)
        assert not any(each.has_failed for each in broker.store.dirs)
        assert brokers.replica(1, "table").log.size_bytes < 40_000

    with caplog.at_level(logging.WARNING, "millstream"):
        run(test, tmp_path, count=1, log_cleaner_backoff_ms="100", log_segment_delete_delay_ms="0")
    assert "a thread does it" in caplog.text


def test_a_log_that_is_deleted_while_it_is_compacted_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()

    def prepare(compaction: Compaction, *_: object) -> None:
        begun.set()
        while not compaction.log.is_closed:
            time.sleep(0.01)
        raise KafkaStorageError("it is closed")

    monkeypatch.setattr(Compaction, "prepare", prepare)

    async def test(brokers: Brokers) -> None:
        await fill(brokers)
        await until(begun.is_set)
        broker = brokers.running[1]
        await broker.controller.delete_topic(broker.metadata.topic("table"))
        await until(lambda: "compaction ended early" in caplog.text)
        assert broker.cleaner.failures.value == 0

    with caplog.at_level(logging.INFO, "millstream"):
        run(test, tmp_path, count=1, log_cleaner_backoff_ms="100", log_segment_delete_delay_ms="0")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
