"""The Java client through Apache Kafka's own console, perf and admin tools.

Every run starts a virtual machine (about a second): independent ones run two at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bench.apache_kafka import run_tool

from tests.compat.samples import CODECS
from tests.compat.stored import stored_batches
from tests.compat.topics import create_topic
from tests.conftest import Name

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("quick_java")]

TOOLS = "org.apache.kafka.tools."
CONFIG_COMMAND = "kafka.admin.ConfigCommand"
TIMEOUT_S = 60.0
SHOW_ALL = ("print.timestamp", "print.partition", "print.offset", "print.headers", "print.key", "print.value")


def tool(bootstrap: str, name: str, *words: str, given: str | None = None, status: int = 0) -> str:
    """One run of a tool; its standard output."""
    main_class = name if name.startswith("kafka.") else TOOLS + name
    arguments = ["--bootstrap-server", bootstrap, *words]
    done = run_tool(main_class, arguments, stdin=given, timeout_seconds=TIMEOUT_S)
    printed = done.stdout.decode()
    assert done.returncode == status, f"{name} {words}: {printed}\n{done.stderr.decode()}"
    return printed


def in_pairs(runs: Iterable[Callable[[], str]]) -> list[str]:
    """Results in order, two runs at a time."""
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(run) for run in runs]
        return [future.result(TIMEOUT_S * 4) for future in waiting]


def console_lines(bootstrap: str, topic: str, count: int, start: str = "earliest") -> list[list[str]]:
    """What the console consumer shows of a topic's first partition, split into fields."""
    show = [word for name in SHOW_ALL for word in ("--formatter-property", f"{name}=true")]
    where = ("--topic", topic, "--partition", "0", "--offset", start)
    limit = ("--max-messages", str(count), "--timeout-ms", "20000")
    printed = tool(bootstrap, "consumer.ConsoleConsumer", *where, *limit, *show)
    return [line.split("\t") for line in printed.splitlines()]


def test_the_console_with_every_codec(bootstrap: str, new_name: Name) -> None:
    """Ten console producers, with and without idempotence in each codec, share a partition."""
    topic = create_topic(bootstrap, new_name("java-console"))
    parse = ("parse.headers=true", "parse.key=true", "null.marker=NULL")
    reader = [word for setting in parse for word in ("--reader-property", setting)]

    def lines(mark: str) -> list[str]:
        odd = [f"from:{mark},h:x\tkey\tvalue", f"from:{mark}\tNULL\tno key", f"from:{mark}\tgone\tNULL"]
        return odd + [f"from:{mark}\tkey{n % 5}\tvalue {n} " + "grain " * 30 for n in range(200)]

    def produce(codec: str, idempotent: bool) -> Callable[[], str]:
        safety = (
            ("enable.idempotence=true", "acks=all") if idempotent else ("enable.idempotence=false", "acks=1")
        )
        settings = (*safety, "linger.ms=50", f"client.id={codec}")
        properties = [word for setting in settings for word in ("--command-property", setting)]
        words = ("--topic", topic, "--compression-codec", codec, *reader, *properties)
        given = "\n".join(lines(f"{codec}/{idempotent}")) + "\n"
        return lambda: tool(bootstrap, "ConsoleProducer", *words, given=given)

    kinds = [(codec, idempotent) for codec in CODECS for idempotent in (True, False)]
    in_pairs(produce(*kind) for kind in kinds)
    count = len(lines("")) * len(kinds)
    records = console_lines(bootstrap, topic, count)
    assert [record[1] for record in records] == ["Partition:0"] * count
    assert [record[2] for record in records] == [f"Offset:{n}" for n in range(count)]
    assert all(re.fullmatch(r"CreateTime:\d{13}", record[0]) for record in records)
    for codec, idempotent in kinds:
        mark = f"from:{codec}/{idempotent}"
        shown = ["\t".join(record[3:]) for record in records if record[3].split(",")[0] == mark]
        assert shown == [line.replace("NULL", "null") for line in lines(f"{codec}/{idempotent}")]
    found = {(batch.codec, batch.producer_id >= 0) for batch in stored_batches(bootstrap, topic)}
    assert found == set(kinds)
    assert [record[2] for record in console_lines(bootstrap, topic, 2, str(count - 2))] == [
        f"Offset:{count - 2}",
        f"Offset:{count - 1}",
    ]


def test_the_perf_tools(bootstrap: str, new_name: Name) -> None:
    topic = create_topic(bootstrap, new_name("java-perf"), partitions=3)

    def perf(codec: str, records: int) -> Callable[[], str]:
        size = ("--num-records", str(records), "--record-size", "500", "--throughput", "-1")
        settings = (f"bootstrap.servers={bootstrap}", f"compression.type={codec}", "batch.size=65536")
        words = ["--topic", topic, *size, "--command-property", *settings]

        def run() -> str:
            done = run_tool(TOOLS + "ProducerPerformance", words, timeout_seconds=TIMEOUT_S)
            assert done.returncode == 0, done.stderr.decode()
            return done.stdout.decode()

        return run

    def verified() -> str:
        return tool(
            bootstrap, "VerifiableProducer", "--topic", topic, "--max-messages", "1000", "--acks", "-1"
        )

    fast, packed, verifiable = in_pairs([perf("none", 60_000), perf("lz4", 30_000), verified])
    assert re.search(r"60000 records sent, .* records/sec", fast)
    assert re.search(r"30000 records sent, .* records/sec", packed)
    events = [json.loads(line) for line in verifiable.splitlines()]
    assert [event for event in events if event["name"] == "producer_send_error"] == []
    (summary,) = [event for event in events if event["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (1000, 1000)
    shown = tool(bootstrap, "GetOffsetShell", "--topic", topic, "--time", "latest")
    assert sum(int(line.rpartition(":")[2]) for line in shown.splitlines()) == 91_000


def test_topics_from_creation_to_deletion(bootstrap: str, new_name: Name) -> None:
    topic = new_name("java-topic")
    command = ("TopicCommand", "--topic", topic)
    created = tool(bootstrap, *command, "--create", "--partitions", "2", "--config", "retention.ms=77777")
    assert f"Created topic {topic}." in created
    assert "retention.ms=77777" in tool(bootstrap, *command, "--describe")
    tool(bootstrap, *command, "--alter", "--partitions", "4")
    listed, _ = in_pairs(
        [
            lambda: tool(bootstrap, "TopicCommand", "--list"),
            lambda: tool(bootstrap, *command, "--create", status=1),
        ]
    )
    assert topic in listed.splitlines()
    described = tool(bootstrap, *command, "--describe").splitlines()
    assert re.match(
        rf"Topic: {topic}\tTopicId: [\w-]{{22}}\tPartitionCount: 4\tReplicationFactor: 1\t", described[0]
    )
    for number, line in enumerate(described[1:]):
        assert re.match(
            rf"\tTopic: {topic}\tPartition: {number}\tLeader: (\d+)\tReplicas: \1\tIsr: \1\t", line
        )
    tool(bootstrap, *command, "--delete")
    assert topic not in tool(bootstrap, "TopicCommand", "--list").splitlines()


def test_configs_of_topics_and_brokers(bootstrap: str, new_name: Name) -> None:
    topic = create_topic(bootstrap, new_name("java-config"), retention_ms="44444")
    broker_id = (
        tool(bootstrap, "TopicCommand", "--describe", "--topic", topic).split("Leader: ")[1].split()[0]
    )
    on_topic = (CONFIG_COMMAND, "--entity-type", "topics", "--entity-name", topic)
    on_broker = (CONFIG_COMMAND, "--entity-type", "brokers", "--entity-name", broker_id)
    by_default = (CONFIG_COMMAND, "--entity-type", "brokers", "--entity-default")
    on_loggers = (CONFIG_COMMAND, "--entity-type", "broker-loggers", "--entity-name", broker_id)
    change = "segment.bytes=2000000,cleanup.policy=[compact,delete]"
    in_pairs(
        [
            lambda: tool(
                bootstrap, *on_topic, "--alter", "--add-config", change, "--delete-config", "retention.ms"
            ),
            lambda: tool(bootstrap, *by_default, "--alter", "--add-config", "log.cleaner.backoff.ms=12345"),
            lambda: tool(bootstrap, *on_topic, "--alter", "--add-config", "no.such.key=1", status=1),
            lambda: tool(bootstrap, *on_loggers, "--alter", "--add-config", "root=ERROR"),
        ]
    )
    try:
        shown, everything, broker, default, loggers = in_pairs(
            [
                lambda: tool(bootstrap, *on_topic, "--describe"),
                lambda: tool(bootstrap, *on_topic, "--describe", "--all"),
                lambda: tool(bootstrap, *on_broker, "--describe", "--all"),
                lambda: tool(bootstrap, *by_default, "--describe"),
                lambda: tool(bootstrap, *on_loggers, "--describe"),
            ]
        )
    finally:
        tool(bootstrap, *on_loggers, "--alter", "--add-config", "root=WARN")
        tool(bootstrap, *by_default, "--alter", "--delete-config", "log.cleaner.backoff.ms")
    assert shown.splitlines() == [
        f"Dynamic configs for topic {topic} are:",
        "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy="
        "compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete}",
        "  segment.bytes=2000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:segment.bytes=2000000, "
        "DEFAULT_CONFIG:log.segment.bytes=1073741824}",
    ]
    topic_keys = set(re.findall(r"^  ([a-z0-9.]+)=", everything, re.MULTILINE))
    assert topic_keys >= KAFKA_TOPIC_KEYS
    assert (
        "  log.cleaner.backoff.ms=12345 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:"
        "log.cleaner.backoff.ms=12345, DEFAULT_CONFIG:log.cleaner.backoff.ms=15000}" in broker
    )
    assert "  log.cleaner.backoff.ms=12345 " in default
    assert "  root=ERROR sensitive=false synonyms={}" in loggers


def test_offsets_records_and_folders(bootstrap: str, new_name: Name, tmp_path: Path) -> None:
    topic = create_topic(bootstrap, new_name("java-admin"))
    given = "".join(f"{n}\n" for n in range(30))
    tool(bootstrap, "ConsoleProducer", "--topic", topic, given=given)
    plan = tmp_path / "delete.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 10}]})
    )
    deleted = tool(bootstrap, "DeleteRecordsCommand", "--offset-json-file", str(plan))
    assert f"partition: {topic}-0\tlow_watermark: 10" in deleted

    def offsets(when: str) -> Callable[[], str]:
        return lambda: tool(bootstrap, "GetOffsetShell", "--topic", topic, "--time", when)

    first, last, dirs, versions, producers = in_pairs(
        [
            offsets("earliest"),
            offsets("latest"),
            lambda: tool(bootstrap, "LogDirsCommand", "--describe", "--topic-list", topic),
            lambda: tool(bootstrap, "BrokerApiVersionsCommand"),
            lambda: tool(
                bootstrap, "TransactionsCommand", "describe-producers", "--topic", topic, "--partition", "0"
            ),
        ]
    )
    assert first == f"{topic}:0:10\n"
    assert last == f"{topic}:0:30\n"
    described = json.loads(dirs.splitlines()[-1])
    (folder,) = [entry for entry in described["brokers"][0]["logDirs"] if entry["partitions"]]
    (partition,) = folder["partitions"]
    assert (partition["partition"], partition["offsetLag"], folder["error"]) == (f"{topic}-0", 0, None)
    assert partition["size"] > 0
    for line in (
        "Produce(0): 0 to 13",
        "Fetch(1): 4 to 18",
        "ListOffsets(2): 1 to 11",
        "Metadata(3): 0 to 13",
    ):
        assert line in versions
    assert len(producers.splitlines()) == 2


KAFKA_TOPIC_KEYS = {
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
}
