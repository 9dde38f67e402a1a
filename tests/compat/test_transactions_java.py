"""The Java client, which speaks transaction version 2: copying within transactions, and the admin's tool."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from bench.apache_kafka import run_tool

from millstream.protocol.batch import read_header
from tests.compat.committed import committed, everything
from tests.compat.topics import create_topic
from tests.conftest import Name
from tests.processes import until
from tests.transactional import NEW_PRODUCE, TransactionalProducer
from tests.wire import Wire, batches, fetch

pytestmark = pytest.mark.java

TOOLS = "org.apache.kafka.tools."
TIMEOUT_S = 90.0


def tool(name: str, *words: str) -> str:
    done = run_tool(TOOLS + name, list(words), timeout_seconds=TIMEOUT_S)
    printed = done.stdout.decode()
    assert done.returncode == 0, f"{name} {words}: {printed}\n{done.stderr.decode()}"
    return printed


def copy(bootstrap: str, source: str, sink: str, partition: int, count: int, name: str) -> dict[str, object]:
    """One copier; a third of its transactions are aborted at random, and then done again."""
    printed = tool(
        "TransactionalMessageCopier",
        *("--broker-list", bootstrap, "--input-topic", source, "--input-partition", str(partition)),
        *("--output-topic", sink, "--max-messages", str(count), "--transaction-size", "40"),
        *("--transactional-id", f"{name}-{partition}", "--consumer-group", f"{name}-{partition}"),
        "--enable-random-aborts",
    )
    last: dict[str, object] = json.loads(printed.splitlines()[-1])
    return last


def test_copying_in_transactions(bootstrap: str, new_name: Name) -> None:
    """Two copiers, one for each partition: the output is the input, in order and exactly once."""
    source = create_topic(bootstrap, new_name("java-source"), 2)
    sink = create_topic(bootstrap, new_name("java-sink"), 2)
    count = 1000
    printed = tool(
        "VerifiableProducer",
        *("--bootstrap-server", bootstrap, "--topic", source, "--max-messages", str(2 * count)),
        *("--value-prefix", "7", "--repeating-keys", "16"),
    )
    assert json.loads(printed.splitlines()[-1])["acked"] == 2 * count
    inputs = committed(bootstrap, source, 2)
    assert sorted(map(len, inputs)) != [0, 2 * count]
    name = new_name("copier")
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(copy, bootstrap, source, sink, partition, len(values), name)
            for partition, values in enumerate(inputs)
        ]
        ended = [future.result(TIMEOUT_S) for future in waiting]
    assert [last["remaining"] for last in ended] == [0, 0]
    assert committed(bootstrap, sink, 2) == inputs
    written = everything(bootstrap, sink, 2)
    assert sum(map(len, written)) > 2 * count, "nothing was ever aborted"


def test_the_new_protocol_is_spoken(bootstrap: str, new_name: Name) -> None:
    """Each transaction has an epoch of its own, and markers have the next one."""
    topic = create_topic(bootstrap, new_name("java-perf"))
    printed = tool(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "-1"),
        *("--transactional-id", new_name("perf"), "--transaction-duration-ms", "20"),
        *("--producer-props", f"bootstrap.servers={bootstrap}"),
    )
    assert "2000 records sent" in printed
    with Wire(bootstrap) as wire:
        headers = [read_header(one) for one in batches(fetch(wire, topic, 0, max_bytes=50 << 20).records)]
    ends = [header for header in headers if header.is_control]
    assert ends
    open_epoch = None
    for header in headers:
        if header.is_control:
            assert open_epoch is not None
            assert header.producer_epoch == open_epoch + 1
            open_epoch = None
        else:
            assert open_epoch in (None, header.producer_epoch)
            open_epoch = header.producer_epoch
    assert len({header.producer_epoch for header in ends}) == len(ends)


def test_the_admin_tool(bootstrap: str, new_name: Name) -> None:
    topic = create_topic(bootstrap, new_name("java-admin"))
    with Wire(bootstrap) as wire:
        producer = TransactionalProducer(wire, new_name("id"), topic).begun()
        assert producer.send(b"stuck", version=NEW_PRODUCE).error_code == 0
        ask = ("--bootstrap-server", bootstrap)
        words = (
            (*ask, "list"),
            (*ask, "describe", "--transactional-id", producer.transactional_id),
            (*ask, "describe-producers", "--topic", topic, "--partition", "0"),
        )
        with ThreadPoolExecutor(2) as pool:
            listed, described, producers = pool.map(lambda each: tool("TransactionsCommand", *each), words)
        assert re.search(rf"{producer.transactional_id}\s+\d+\s+{producer.producer_id}\s+Ongoing", listed)
        assert re.search(rf"Ongoing\s+.*{topic}-0", described)
        assert re.search(rf"^{producer.producer_id}\s+{producer.epoch}\s", producers, re.MULTILINE)
        tool(
            "TransactionsCommand",
            *(*ask, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0"),
        )
        until(lambda: committed(bootstrap, topic) == [[]], 30, "readers go on")
