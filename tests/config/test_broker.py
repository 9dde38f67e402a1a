"""A broker's configuration: given, defaulted, changed while it runs, read from Kafka's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.config.broker import BrokerConfig
from millstream.config.keys import ConfigError
from millstream.config.listeners import Listener
from millstream.errors import InvalidConfig


def test_defaults_just_work() -> None:
    config = BrokerConfig()
    assert config.listeners == [Listener("PLAINTEXT", "localhost", 9092, "PLAINTEXT")]
    assert config.advertised_listeners == config.listeners
    assert config.inter_broker_listener == config.listeners[0]
    assert config.node_id == 1
    assert config.log_dirs == ("millstream-data",)
    assert config["num.partitions"] == 1
    assert config["auto.create.topics.enable"] is True
    assert config["registry"] == "sqlite"
    with pytest.raises(KeyError):
        config["no.such.key"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num.partitons": "3"}, "did you mean num.partitions?"),
        ({"num.partitions": "many"}, "num.partitions takes a whole number"),
        ({"num.partitions": "0"}, "at least 1"),
        ({"zookeeper.connect": "localhost"}, "registry=zookeeper://HOST:PORT"),
        ({"listeners": "localhost:9092"}, "NAME://HOST:PORT"),
        ({"listeners": ""}, "at least one"),
        ({"listeners": "PLAINTEXT://:99999"}, "above 65535"),
        ({"listeners": "A://:1"}, "listener.security.protocol.map"),
        ({"listeners": "PLAINTEXT://:1,plaintext://:2"}, "used twice"),
        ({"listener.security.protocol.map": "A:B"}, "PLAINTEXT, SSL"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "clients can connect to"),
        ({"advertised.listeners": "SSL://host:9092"}, "which listeners does not have"),
        ({"inter.broker.listener.name": "OTHER"}, "not one of the listeners"),
        ({"listeners": "SSL://:9093"}, "no listener speaks PLAINTEXT"),
        ({"node.id": "1", "broker.id": "2"}, "must not differ"),
        ({"log.retention.ms": "0"}, "-1, or at least 1"),
        ({"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "9"}, "must not be greater"),
        ({"registry": "etcd"}, "memory"),
        ({"metrics.listener": "9090"}, "HOST:PORT"),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        BrokerConfig(given)
    assert says in str(error.value)


def test_listeners_have_names_protocols_and_addresses_for_clients() -> None:
    config = BrokerConfig(
        {
            "listeners": "internal://0.0.0.0:9092, OUTSIDE://[::1]:0",
            "advertised.listeners": "INTERNAL://broker-1:9092,OUTSIDE://[2001:db8::1]:443",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,outside:SASL_SSL",
            "inter.broker.listener.name": "internal",
        }
    )
    assert config.listeners == [
        Listener("INTERNAL", "0.0.0.0", 9092, "PLAINTEXT"),
        Listener("OUTSIDE", "::1", 0, "SASL_SSL"),
    ]
    assert [str(listener) for listener in config.advertised_listeners] == [
        "INTERNAL://broker-1:9092",
        "OUTSIDE://[2001:db8::1]:443",
    ]
    assert config.inter_broker_listener.name == "INTERNAL"


def test_an_empty_list_of_advertised_listeners_means_the_listeners() -> None:
    config = BrokerConfig({"advertised.listeners": "", "listeners": "PLAINTEXT://127.0.0.1:0"})
    assert config.advertised_listeners == config.listeners


@pytest.mark.parametrize("given", [{"broker.id": "7"}, {"node.id": "7"}, {"node.id": "7", "broker.id": "7"}])
def test_broker_id_is_another_name_of_node_id(given: dict[str, str]) -> None:
    config = BrokerConfig(given)
    assert (config.node_id, config["node.id"], config["broker.id"]) == (7, 7, 7)


def test_log_dirs_win_over_log_dir() -> None:
    assert BrokerConfig({"log.dir": "a"}).log_dirs == ("a",)
    assert BrokerConfig({"log.dir": "a", "log.dirs": "b, c"}).log_dirs == ("b", "c")


def test_a_key_may_be_given_for_one_listener() -> None:
    config = BrokerConfig(
        {
            "listener.name.plaintext.max.connections": "5",
            "max.connections": "100",
            "listener.name.plaintext.scram-sha-256.sasl.jaas.config": "secret",
        }
    )
    assert config.for_listener("PLAINTEXT", "max.connections", 7) == 5
    assert config.for_listener("OTHER", "max.connections", 7) == 7
    assert config.for_listener("PLAINTEXT", "scram-sha-256.sasl.jaas.config", None) == "secret"
    assert config["max.connections"] == 100


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("listener.name.plaintext.no.such.key", "unknown"),
        ("listener.name.plaintext.other.max.connections", "unknown"),
        ("listener.name.plaintext.num.partitions", "num.partitions cannot be given for one listener alone"),
        ("listener.name.plaintext.max.connections.per.ip", "cannot be given for one listener alone"),
        ("listener.name.PLAINTEXT.max.connections", "small letters, plaintext"),
        ("listener.name.outside.max.connections", "none of the listeners, which are PLAINTEXT"),
    ],
)
def test_a_key_for_one_listener_that_would_have_no_effect_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig({name: "1"})
    config = BrokerConfig()
    with pytest.raises(InvalidConfig, match=message):
        config.set_dynamic(broker={name: "1"})


def test_what_is_set_while_running_wins_and_can_be_taken_back() -> None:
    config = BrokerConfig({"log.retention.ms": "1", "log.segment.bytes": "2000000"})
    base = config.log_config
    assert config.set_dynamic(default={"log.retention.ms": "2"}) == {"log.retention.ms"}
    assert config.log_config.retention_ms == 2
    assert config.set_dynamic(broker={"log.retention.ms": "3"}) == {"log.retention.ms"}
    assert config.log_config.retention_ms == 3
    assert config.set_dynamic(default={}) == frozenset()
    assert config.log_config.retention_ms == 3
    config.set_dynamic(broker={})
    assert config.log_config == base


def test_a_stronger_source_wins_also_in_a_coarser_unit() -> None:
    config = BrokerConfig({"log.retention.ms": "1", "log.retention.hours": "2"})
    assert config.log_config.retention_ms == 1
    config.set_dynamic(broker={"log.retention.ms": "5"})
    assert config.log_config.retention_ms == 5


@pytest.mark.parametrize(
    ("layer", "texts", "says"),
    [
        ("broker", {"num.partitions": "2"}, "cannot be changed while"),
        ("broker", {"listeners": "PLAINTEXT://:1"}, "listeners cannot be changed while"),
        ("broker", {"listener.security.protocol.map": "PLAINTEXT:SSL"}, "cannot be changed while"),
        ("default", {"ssl.client.auth": "none"}, "single broker"),
        ("broker", {"log.retention.ms": "x"}, "whole number"),
        ("broker", {"no.such": "x"}, "unknown"),
        (
            "broker",
            {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"},
            "greater",
        ),
    ],
)
def test_a_bad_change_while_running_changes_nothing(layer: str, texts: dict[str, str], says: str) -> None:
    config = BrokerConfig({"log.retention.ms": "1"})
    config.set_dynamic(broker={"log.segment.bytes": "3000000"}, default={"log.segment.bytes": "4000000"})
    before = [dict(each.texts) for each in config.layers], config.log_config
    with pytest.raises(InvalidConfig, match=says):
        config.set_dynamic(**{layer: texts})
    assert ([dict(each.texts) for each in config.layers], config.log_config) == before


def test_the_part_that_may_be_set_while_running() -> None:
    low, high = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    config = BrokerConfig({high: "5"})
    own = {"listeners": "PLAINTEXT://:1", low: "9", "message.max.bytes": "2000"}
    default = {"log.retention.ms": "x", high: "10", "node.id": "4"}
    broker, every, refused = config.valid_part(own, default)
    assert (broker, every) == (
        {low: "9", "message.max.bytes": "2000"},
        {high: "10"},
    )  # one fits with the other
    assert set(refused) == {"listeners", "log.retention.ms", "node.id"}
    assert "cannot be changed while" in refused["listeners"]
    assert [each.texts for each in config.layers[:2]] == [{}, {}]
    config.set_dynamic(broker, every)
    assert config[low] == 9


def test_both_layers_change_or_none() -> None:
    config = BrokerConfig()
    with pytest.raises(InvalidConfig):
        config.set_dynamic(broker={"log.segment.bytes": "3000000"}, default={"node.id": "4"})
    assert config.layers[0].texts == {}
    assert config["log.segment.bytes"] == 1024**3


def test_keys_without_effect_are_told() -> None:
    config = BrokerConfig(
        {"num.io.threads": "8", "num.partitions": "2", "process.roles": "broker,controller"}
    )
    assert [key.name for key in config.idle_keys()] == ["num.io.threads", "process.roles"]
    assert all("no effect" in key.documentation for key in config.idle_keys())


def test_a_kafka_properties_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        """\
# Licensed to nobody
process.roles=broker,controller
node.id=4
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
advertised.listeners = PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
log.dirs=/var/lib/a,\\
         /var/lib/b
num.partitions:3
"""
    )
    config = BrokerConfig.load_properties(file, {"num.partitions": "5"})
    assert config.node_id == 4
    assert config.log_dirs == ("/var/lib/a", "/var/lib/b")
    assert config["num.partitions"] == 5
    assert [listener.name for listener in config.listeners] == ["PLAINTEXT", "CONTROLLER"]
    with pytest.raises(ConfigError, match="cannot read"):
        BrokerConfig.load_properties(tmp_path / "none.properties")
