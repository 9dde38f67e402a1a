"""Broker keys of the cluster: who the broker is, its topics, quotas and metrics."""

from __future__ import annotations

from millstream.config.checks import ListOf, at_least
from millstream.config.keys import ConfigKey

NO_WINDOWS = "quotas and rates are not measured in windows of this size"
NO_PURGATORY = "requests that wait are dropped from memory as soon as they are answered"
NO_PLUGIN = "Java classes cannot be loaded"
PROMETHEUS = "metrics are served to Prometheus, see metrics.listener"

CLUSTER_KEYS = (
    ConfigKey(
        "alter.config.policy.class.name",
        "class",
        None,
        "A class that may refuse changes of configurations.",
        idle=NO_PLUGIN,
    ),
    ConfigKey(
        "auto.create.topics.enable",
        "boolean",
        True,
        "Create a topic when a client asks for its metadata or writes to it, with num.partitions partitions.",
    ),
    ConfigKey(
        "background.threads",
        "int",
        10,
        "How many threads do background work.",
        at_least(1),
        "cluster-wide",
        idle="background work runs on the event loop and a few threads of its own",
    ),
    ConfigKey("broker.id", "int", -1, "The older name of node.id."),
    ConfigKey(
        "broker.rack",
        "string",
        None,
        "The rack or zone of this broker, which replicas are spread over and which consumers may prefer to"
        " read from.",
    ),
    ConfigKey(
        "config.providers",
        "list",
        (),
        "Sources that placeholders in configurations are read from.",
        None,
        "cluster-wide",
        idle=NO_PLUGIN,
    ),
    ConfigKey(
        "controlled.shutdown.enable",
        "boolean",
        True,
        "Hand leadership over to other brokers before stopping.",
    ),
    ConfigKey(
        "controller.quota.window.num",
        "int",
        11,
        "How many samples the rate of topic changes is measured over.",
        at_least(1),
        idle=NO_WINDOWS,
    ),
    ConfigKey(
        "controller.quota.window.size.seconds",
        "int",
        1,
        "The length of one sample of the rate of topic changes.",
        at_least(1),
        idle=NO_WINDOWS,
    ),
    ConfigKey(
        "controller.socket.timeout.ms",
        "int",
        30_000,
        "How long a request between controller and broker may take.",
    ),
    ConfigKey(
        "create.topic.policy.class.name", "class", None, "A class that may refuse new topics.", idle=NO_PLUGIN
    ),
    ConfigKey(
        "default.replication.factor",
        "int",
        1,
        "How many replicas an automatically created topic gets, and one that is created without a number.",
        at_least(1),
    ),
    ConfigKey(
        "delete.records.purgatory.purge.interval.requests",
        "int",
        1,
        "How often waiting DeleteRecords requests are cleaned out of memory.",
        idle=NO_PURGATORY,
    ),
    ConfigKey("delete.topic.enable", "boolean", True, "Let clients delete topics."),
    ConfigKey(
        "fetch.purgatory.purge.interval.requests",
        "int",
        1000,
        "How often waiting Fetch requests are cleaned out of memory.",
        idle=NO_PURGATORY,
    ),
    ConfigKey(
        "kafka.metrics.polling.interval.secs",
        "int",
        10,
        "How often Kafka's own metrics reporters are called.",
        at_least(1),
        idle=PROMETHEUS,
    ),
    ConfigKey(
        "kafka.metrics.reporters",
        "list",
        (),
        "Classes that Kafka's own metrics are handed to.",
        idle=PROMETHEUS,
    ),
    ConfigKey(
        "metric.reporters",
        "list",
        (),
        "Classes that metrics are handed to.",
        None,
        "cluster-wide",
        idle=PROMETHEUS,
    ),
    ConfigKey(
        "metrics.num.samples",
        "int",
        2,
        "How many samples a metric is computed over.",
        at_least(1),
        idle=PROMETHEUS,
    ),
    ConfigKey(
        "metrics.recording.level",
        "string",
        "INFO",
        "Down to which level metrics are recorded.",
        idle=PROMETHEUS,
    ),
    ConfigKey(
        "metrics.sample.window.ms",
        "long",
        30_000,
        "The length of one sample of a metric.",
        at_least(1),
        idle=PROMETHEUS,
    ),
    ConfigKey(
        "node.id",
        "int",
        1,
        "The number of this broker, which no other broker of the cluster may have.",
        at_least(0),
    ),
    ConfigKey(
        "num.partitions",
        "int",
        1,
        "How many partitions an automatically created topic gets, and one that is created without a number.",
        at_least(1),
    ),
    ConfigKey(
        "process.roles",
        "list",
        ("broker",),
        "What this process is; 'controller' is accepted, since any broker may become the controller.",
        ListOf(("broker", "controller")),
        idle="every process is a broker that can be elected controller",
    ),
    ConfigKey(
        "quota.window.num",
        "int",
        11,
        "How many samples client quotas are measured over.",
        at_least(1),
        idle=NO_WINDOWS,
    ),
    ConfigKey(
        "quota.window.size.seconds",
        "int",
        1,
        "The length of one sample of client quotas.",
        at_least(1),
        idle=NO_WINDOWS,
    ),
    ConfigKey(
        "client.quota.callback.class", "class", None, "A class that decides client quotas.", idle=NO_PLUGIN
    ),
    ConfigKey(
        "telemetry.max.bytes",
        "int",
        1024 * 1024,
        "The largest report of a client's own metrics (KIP-714).",
        at_least(1),
        idle="clients' own metrics are not collected",
    ),
)
