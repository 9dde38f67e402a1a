"""Compaction through a running broker: what readers find, what is told of it, and what stops leave behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import psutil
from prometheus_client.parser import text_string_to_metric_families

from millstream.protocol.batch import Record, decode_records
from tests.behaviour.test_metrics_endpoint import listens, scrape
from tests.behaviour.test_stop_and_restart import set_config
from tests.processes import BrokerProcess, free_port, until
from tests.wire import Wire, batch, create_topic, fetch, produce

PATIENCE_S = 30.0
EAGER = {"log_cleaner_backoff_ms": "50", "log_segment_delete_delay_ms": "0"}
COMPACT = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
SMALL = {**COMPACT, "internal_segment_bytes": "20000"}

Table = dict[bytes, bytes]


def write(
    wire: Wire, topic: str, count: int, *, keys: int = 50, value_bytes: int = 100, start: int = 0
) -> Table:
    """Batches of ten keyed records of all codecs; what the keys' values are then."""
    table: Table = {}
    random = Random(count)
    now_ms = int(time.time() * 1000)
    for first in range(start, start + count, 10):
        records = [
            Record(
                key=b"%d" % (number % keys),
                value=b"%d " % number + random.randbytes(value_bytes),
                timestamp=now_ms,
            )
            for number in range(first, first + 10)
        ]
        assert produce(wire, topic, batch(records, codec=first // 10 % 5)).error_code == 0
        table.update({record.key: record.value for record in records if record.key and record.value})
    return table


def read(wire: Wire, topic: str) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while True:
        answer = fetch(wire, topic, offset)
        assert answer.error_code == 0, answer
        if not answer.records:
            return found
        found += decode_records(answer.records, from_offset=offset)
        offset = found[-1].offset + 1


def table_of(records: list[Record]) -> Table:
    return {record.key: record.value for record in records if record.key and record.value}


def cleaned_until(broker: BrokerProcess, topic: str) -> int:
    path = broker.data / "cleaner-offset-checkpoint"
    rows = path.read_text().splitlines()[2:] if path.exists() else []
    return next((int(row.split()[2]) for row in rows if row.split()[0] == topic), 0)


def metrics(port: int) -> dict[str, float]:
    """What is told of compaction."""
    prefix = "millstream_compaction_"
    return {
        sample.name.removeprefix(prefix): sample.value
        for family in text_string_to_metric_families(scrape(port)[1])
        for sample in family.samples
        if sample.name.startswith(prefix)
    }


def helpers(broker: BrokerProcess) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(broker.pid).children()
    return found


def is_kind(helper: psutil.Process) -> bool:
    """Whether a process lets this one go first, and the broker, which has this one's priority."""
    try:
        return bool(helper.nice() > psutil.Process().nice())
    except psutil.NoSuchProcess:
        return False


def test_only_the_last_record_of_each_key_stays(broker_process: Callable[..., BrokerProcess]) -> None:
    port = free_port()
    broker = broker_process(metrics_listener=f"127.0.0.1:{port}", **EAGER).start()
    until(lambda: listens(port), PATIENCE_S, "the metrics are served")
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "kept", 1, **SMALL)
        create_topic(wire, "plain", internal_segment_bytes="20000")
        expected = write(wire, "kept", 3000)
        write(wire, "plain", 1000)
        until(lambda: cleaned_until(broker, "kept") > 2500, PATIENCE_S, "the log is compacted")
        found = read(wire, "kept")
        assert table_of(found) == expected
        assert len(found) < 600
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        assert len(read(wire, "plain")) == 1000
        assert helpers(broker) == []  # so little is not worth a process
        until(lambda: metrics(port)["max_dirty_ratio"] == 0, PATIENCE_S, "nothing more is dirty")
        told = metrics(port)
        assert told["runs_total"] >= 1
        assert told["read_bytes_total"] > 100_000
        assert 0 < told["written_bytes_total"] < told["read_bytes_total"]
        assert told["failures_total"] == 0
        assert told["uncleanable_partitions"] == 0
    assert broker.stop() == 0
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert table_of(read(wire, "kept")) == expected
        expected |= write(wire, "kept", 1000, start=3000)
        until(lambda: cleaned_until(broker, "kept") > 3500, PATIENCE_S, "it is compacted again")
        assert table_of(read(wire, "kept")) == expected


def test_switched_off_it_leaves_everything(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process(log_cleaner_enable="false", **EAGER).start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "kept", 1, **SMALL)
        write(wire, "kept", 1000)
        assert broker.runs_for(1)
        assert len(read(wire, "kept")) == 1000


def fill(broker: BrokerProcess) -> Table:
    """Twelve megabytes in a topic that is compacted from the next start on, which is now."""
    broker.start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "kept", internal_segment_bytes="2000000")
        expected = write(wire, "kept", 4000, value_bytes=3000)
    assert broker.stop() == 0
    broker.options |= {"log.cleanup.policy": "compact", "log.cleaner.min.cleanable.ratio": "0.01"}
    broker.start()
    return expected


def test_large_logs_are_compacted_by_another_process(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process(
        log_cleaner_io_max_bytes_per_second="20000000", log_cleaner_io_buffer_size="65536", **EAGER
    )
    expected = fill(broker)
    with Wire(broker.bootstrap) as wire:
        until(
            lambda: any(map(is_kind, helpers(broker))),
            PATIENCE_S,
            "a modest process is at work",
        )
        until(lambda: cleaned_until(broker, "kept") > 3000, PATIENCE_S, "the log is compacted")
        assert table_of(read(wire, "kept")) == expected
        assert len(read(wire, "kept")) < 1000
        until(lambda: not helpers(broker), PATIENCE_S, "the process ends when there is no more to do")


def test_whatever_ends_a_broker_while_it_compacts(broker_process: Callable[..., BrokerProcess]) -> None:
    """A stop, a kill, the death of the helper: all that it leaves is a log as it was, or a compacted one."""
    broker = broker_process(log_cleaner_io_max_bytes_per_second="6000000", **EAGER)
    expected = fill(broker)
    folder = broker.partition_folder("kept")
    for end in (broker.stop, broker.kill, None):
        (helper,) = until(lambda: helpers(broker), PATIENCE_S, "a process is at work")
        if end is None:
            helper.kill()
            until(lambda: "failed: the process" in broker.output, PATIENCE_S, "that is told")
        else:
            until(lambda: has_begun(folder), PATIENCE_S, "segments are written anew")
            began = time.monotonic()
            assert not end()
            assert time.monotonic() - began < 10
            until(partial(has_ended, helper), PATIENCE_S, "the process ends too")
            broker.start()
        with Wire(broker.bootstrap) as wire:
            assert table_of(read(wire, "kept")) == expected
    assert broker.stop() == 0
    assert not has_begun(folder)
    broker.options["log.cleaner.io.max.bytes.per.second"] = "1e12"
    broker.start()
    with Wire(broker.bootstrap) as wire:
        until(lambda: cleaned_until(broker, "kept") > 3000, PATIENCE_S, "the log is compacted in the end")
        assert table_of(read(wire, "kept")) == expected


def has_begun(folder: Path) -> bool:
    return any(path.suffix in (".cleaned", ".swap") for path in folder.iterdir())


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_damaged_log_is_told_and_the_others_are_compacted(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    port = free_port()
    broker = broker_process(metrics_listener=f"127.0.0.1:{port}", **EAGER).start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "good", internal_segment_bytes="20000")
        create_topic(wire, "bad", internal_segment_bytes="20000")
        expected = write(wire, "good", 1000)
        write(wire, "bad", 1000)
    assert broker.stop() == 0
    path = sorted(broker.partition_folder("bad").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    broker.options |= {"log.cleanup.policy": "compact", "log.cleaner.min.cleanable.ratio": "0.01"}
    broker.start()
    until(lambda: listens(port), PATIENCE_S, "the metrics are served")
    until(lambda: cleaned_until(broker, "good") > 500, PATIENCE_S, "the good one is compacted")
    until(lambda: "bad-0 will not be compacted" in broker.output, PATIENCE_S, "the bad one is told")
    assert cleaned_until(broker, "bad") == 0
    assert path.read_bytes() == data
    text = scrape(port)[1]
    assert "millstream_compaction_uncleanable_partitions 1.0" in text
    assert "millstream_compaction_failures_total 1.0" in text
    with Wire(broker.bootstrap) as wire:
        assert table_of(read(wire, "good")) == expected
    assert broker.runs_for(0.5)
    assert broker.output.count("will not be compacted") == 1


def test_compact_and_delete_also_deletes_by_age(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process(log_retention_check_interval_ms="50", **EAGER).start()
    with Wire(broker.bootstrap) as wire:
        settings = {**SMALL, "cleanup_policy": "compact,delete", "retention_ms": "3600000"}
        create_topic(wire, "both", 1, **settings)
        expected = write(wire, "both", 1000)
        until(lambda: cleaned_until(broker, "both") > 500, PATIENCE_S, "the log is compacted")
        assert table_of(read(wire, "both")) == expected
        set_config(wire, "both", "retention.ms", "500")
        until(lambda: earliest(wire, "both") >= 1000, PATIENCE_S, "the old segments go")
        later = write(wire, "both", 10, start=5000)
        assert fetch(wire, "both", 0).error_code == 1  # OFFSET_OUT_OF_RANGE
        assert later


def earliest(wire: Wire, topic: str) -> int:
    return fetch(wire, topic, 1000).log_start_offset
