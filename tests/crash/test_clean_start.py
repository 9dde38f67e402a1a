"""A clean stop starts again without reading the logs; after any other end they are looked at."""

from __future__ import annotations

from collections.abc import Callable

from tests.processes import BrokerProcess
from tests.wire import Wire, append, batch, create_topic, end_offset, produce, produce_request

MB = 1 << 20


def bytes_read(broker: BrokerProcess) -> int:
    """What the process has read by system calls since it started, of files and sockets."""
    with open(f"/proc/{broker.pid}/io") as counters:
        return int(next(line for line in counters if line.startswith("rchar")).split()[1])


def test_only_an_unclean_stop_needs_a_scan(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process(log_segment_bytes=str(100 * MB)).start()
    small_start = bytes_read(broker)
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "big", max_message_bytes=str(2 * MB))
        data = batch([bytes(10_000)] * 100)
        for _ in range(60):
            wire.send(produce_request("big", data), 9)
        for _ in range(60):
            wire.receive()
        end = end_offset(wire, "big")
        assert end == 6000
    broker.kill()
    broker.start()
    assert bytes_read(broker) > 50 * MB, "nothing was checked after a kill"
    with Wire(broker.bootstrap) as wire:
        assert end_offset(wire, "big") == end
        assert produce(wire, "big", data).base_offset == end
    assert broker.stop() == 0
    broker.start()
    assert bytes_read(broker) < small_start + 5 * MB, "a clean start read the log"
    with Wire(broker.bootstrap) as wire:
        assert end_offset(wire, "big") == end + 100
        assert append(wire, "big", b"on") == end + 100


def test_a_clean_stop_counts_once(broker_process: Callable[..., BrokerProcess]) -> None:
    """The mark of a clean stop is taken away at the start: a kill right after is not mistaken for one."""
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "t")
        append(wire, "t", b"one")
    assert broker.stop() == 0
    marks = [path for path in broker.data.iterdir() if "cleanshutdown" in path.name]
    assert len(marks) == 1
    broker.start()
    assert not marks[0].exists()
    with Wire(broker.bootstrap) as wire:
        append(wire, "t", b"two")
    broker.kill()
    assert not marks[0].exists()
    with (broker.partition_folder("t") / f"{0:020d}.log").open("ab") as file:
        file.write(b"torn")
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert append(wire, "t", b"three") == 2
