"""A broker's configuration: what was given, what is set while it runs, and the defaults beneath.

A value is taken from the first layer that has one: set on this broker while running (dynamic broker),
set on all brokers while running (dynamic default), given at the start (static), the default. The texts
of each layer are kept, since DescribeConfigs shows where a value comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from enum import IntEnum
from pathlib import Path
from typing import Any

from millstream.config.broker_keys import BROKER_KEYS, LISTENER_PREFIX, PER_LISTENER, REMOVED, find_key
from millstream.config.checks import Value
from millstream.config.keys import BadValue, ConfigError, ConfigKey, nearest
from millstream.config.listeners import Listener, parse_listeners, parse_protocols
from millstream.config.log import LogConfig, broker_log_config
from millstream.config.properties import read_properties
from millstream.config.topic import TOPIC_KEYS
from millstream.errors import InvalidConfig


class Source(IntEnum):
    """Where a value comes from, by DescribeConfigs' numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT = 3
    STATIC = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    GROUP = 8


class Layer:
    """The texts that one source gives, and their typed values."""

    __slots__ = ("source", "texts", "values")

    def __init__(self, source: Source, texts: Mapping[str, str], values: Mapping[str, Value]) -> None:
        self.source = source
        self.texts = dict(texts)
        self.values = dict(values)


class BrokerConfig:
    """The typed values by Kafka's names: `config["num.partitions"]`.

    Invariant: every name in BROKER_KEYS has a value. What is set while the broker runs replaces whole
    layers through `set_dynamic`, so that readers see either the old or the new configuration.
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        texts = dict(values or {})
        parsed: dict[str, Value] = {}
        for name, text in texts.items():
            try:
                parsed[name] = known_key(name).parse(text)
            except BadValue as error:
                raise ConfigError(str(error)) from None
        self._static = Layer(Source.STATIC, texts, parsed)
        self._dynamic = Layer(Source.DYNAMIC_BROKER, {}, {})
        self._dynamic_default = Layer(Source.DYNAMIC_DEFAULT, {}, {})
        self._log_config: LogConfig | None = None
        self._resolve()
        self._check()

    @classmethod
    def load_properties(cls, path: str | Path, values: Mapping[str, str] | None = None) -> BrokerConfig:
        """The configuration in a Kafka .properties file, with `values` on top of it."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the configuration file {path}: {error}") from None
        return cls({**read_properties(text), **(values or {})})

    def __getitem__(self, name: str) -> Any:
        """The value that holds now; KeyError for a name that is no broker key."""
        return self._values[name]

    def started_with(self, name: str) -> Any:
        """The value that was given at the start, or the default, whatever was set since."""
        return self._static.values.get(name, BROKER_KEYS[name].default)

    def for_listener(self, listener: str, name: str, otherwise: Any) -> Any:
        """The value of a key that is given for one listener alone, listener.name.LISTENER.KEY."""
        return self._values.get(f"{LISTENER_PREFIX}{listener.lower()}.{name}", otherwise)

    @property
    def layers(self) -> tuple[Layer, Layer, Layer]:
        """What is set, the strongest source first."""
        return self._dynamic, self._dynamic_default, self._static

    @property
    def node_id(self) -> int:
        return int(self["node.id"])

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The folders of the logs: log.dirs, else log.dir."""
        return tuple(self["log.dirs"] or self["log.dir"])

    @property
    def listeners(self) -> list[Listener]:
        return parse_listeners(self["listeners"], parse_protocols(self["listener.security.protocol.map"]))

    @property
    def advertised_listeners(self) -> list[Listener]:
        """What clients are told; a listener's own address where nothing else is said."""
        advertised = self["advertised.listeners"]
        if not advertised:
            return self.listeners
        protocols = parse_protocols(self["listener.security.protocol.map"])
        return parse_listeners(advertised, protocols)

    @property
    def inter_broker_listener(self) -> Listener:
        """The listener that other brokers use."""
        name, protocol = self["inter.broker.listener.name"], self["security.inter.broker.protocol"]
        for listener in self.listeners:
            if listener.name == name.upper() if name else listener.protocol == protocol:
                return listener
        raise ConfigError(
            f"inter.broker.listener.name={name} is not one of the listeners"
            if name
            else f"no listener speaks {protocol}, the security.inter.broker.protocol;"
            " set inter.broker.listener.name to one of the listeners"
        )

    @property
    def peer_listener(self) -> str | None:
        """The listener that is for other brokers too; None if they get one of their own."""
        return self.inter_broker_listener.name if self["inter.broker.listener.name"] else None

    @property
    def log_config(self) -> LogConfig:
        """The configuration of a topic that sets nothing."""
        if self._log_config is None:
            self._log_config = broker_log_config(self)
        return self._log_config

    def topic_default(self, name: str) -> tuple[Value, Source]:
        """The value of a topic key that the topic does not set, and where it comes from."""
        key = TOPIC_KEYS[name]
        for layer in self.layers:
            for synonym in key.synonyms:
                value = layer.values.get(synonym.name)
                if value is None:
                    continue
                if synonym.factor != 1 and isinstance(value, int):
                    return (value * synonym.factor if value > 0 else value), layer.source
                return value, layer.source
        return key.default, Source.DEFAULT

    def inherited(self, name: str, *, is_default: bool = False) -> Value:
        """What holds for a name that is not set while running: on this broker, or on all (`is_default`)."""
        for layer in self.layers[2 if is_default else 1 :]:
            if name in layer.values:
                return layer.values[name]
        key = BROKER_KEYS.get(name)
        return None if key is None else key.default

    def idle_keys(self) -> Iterator[ConfigKey]:
        """The keys that were given although they change nothing here, for a word to the user."""
        for name in self._static.texts:
            key = known_key(name)
            if key.idle:
                yield key

    def set_dynamic(
        self, broker: Mapping[str, str] | None = None, default: Mapping[str, str] | None = None
    ) -> frozenset[str]:
        """Replace what is set while running on this broker, on all brokers (None leaves a layer).

        Answers the names whose value changed. InvalidConfig if a key may not be set there or a value is
        not valid; nothing is changed then.
        """
        one, every = self._dynamic, self._dynamic_default
        if broker is not None:
            one = Layer(Source.DYNAMIC_BROKER, broker, check_dynamic(broker, per_broker=True))
        if default is not None:
            every = Layer(Source.DYNAMIC_DEFAULT, default, check_dynamic(default, per_broker=False))
        trial = copy(self)
        trial._dynamic, trial._dynamic_default = one, every
        trial._resolve()
        try:
            trial._check()
        except ConfigError as error:
            raise InvalidConfig(str(error)) from None
        before = self._values
        vars(self).update(vars(trial))
        names = before.keys() | self._values.keys()
        return frozenset(name for name in names if before.get(name) != self._values.get(name))

    def check_change(
        self, before: Mapping[str, str], after: Mapping[str, str], *, is_default: bool = False
    ) -> None:
        """Raise InvalidConfig if this broker could not take a change of its own layer, or of that of all.

        What was not valid before, and stays as it is, holds nowhere and is not judged.
        """
        one, every = (dict(layer.texts) for layer in self.layers[:2])
        *_, refused = self.valid_part(one, before) if is_default else self.valid_part(before, every)
        judged = {
            name: text for name, text in after.items() if name not in refused or text != before.get(name)
        }
        trial = copy(self)
        if is_default:
            trial.set_dynamic(default=judged)
        else:
            trial.set_dynamic(broker=judged)

    def valid_part(
        self, broker: Mapping[str, str], default: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """What of two layers `set_dynamic` takes, and for each name that it does not take the reason.

        A key may be valid only beside another: what does not fit is tried again while others do.
        """
        kept: tuple[dict[str, str], dict[str, str]] = ({}, {})
        trial = copy(self)
        trial.set_dynamic(*kept)
        layers = enumerate((broker, default))
        left = [(number, name, text) for number, texts in layers for name, text in texts.items()]
        while left:
            refused: dict[str, str] = {}
            again = []
            for number, name, text in left:
                tried = ({**kept[0]}, {**kept[1]})
                tried[number][name] = text
                try:
                    trial.set_dynamic(*tried)
                    kept = tried
                except InvalidConfig as error:
                    refused[name] = error.message
                    again.append((number, name, text))
            if len(again) == len(left):
                return *kept, refused
            left = again
        return *kept, {}

    def _resolve(self) -> None:
        values: dict[str, Value] = {name: key.default for name, key in BROKER_KEYS.items()}
        for layer in reversed(self.layers):
            values.update(layer.values)
        given = self._static.values
        if "node.id" not in given and values["broker.id"] != -1:
            values["node.id"] = values["broker.id"]
        self._broker_id_differs = values["broker.id"] not in (-1, values["node.id"])
        values["broker.id"] = values["node.id"]
        self._values = values
        self._log_config = None

    def _check(self) -> None:
        """What no key can check alone."""
        if self._broker_id_differs:
            raise ConfigError("node.id and broker.id are two names of one key and must not differ")
        try:
            names = [listener.name for listener in self.listeners]
            if not names:
                raise ValueError("give at least one, such as PLAINTEXT://localhost:9092")
            advertised = self.advertised_listeners
        except ValueError as error:
            raise ConfigError(f"listeners: {error}") from None
        for listener in advertised:
            if listener.name not in names:
                raise ConfigError(f"advertised.listeners has {listener.name}, which listeners does not have")
            if self["advertised.listeners"] and listener.host in ("", "0.0.0.0", "::"):
                raise ConfigError(
                    f"advertised.listeners has {listener}; give a host that clients can connect to"
                )
        self.inter_broker_listener  # noqa: B018 (raises if there is none)
        for name in (*self._static.texts, *self._dynamic.texts):
            only_for, is_used = _listener_of(name), not known_key(name).idle
            if only_for is not None and is_used and only_for.upper() not in names:
                raise ConfigError(f"{name} names none of the listeners, which are {', '.join(names)}")
        for low, high in _ORDERED:
            if self[low] > self[high]:
                raise ConfigError(f"{low} ({self[low]}) must not be greater than {high} ({self[high]})")


_ORDERED = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
)


def known_key(name: str) -> ConfigKey:
    """The key of a broker's configuration, or ConfigError with the nearest name."""
    key = find_key(name)
    if key is None:
        if name in REMOVED:
            raise ConfigError(f"{name} does not exist in Kafka 4: {REMOVED[name]}")
        raise ConfigError(f"unknown configuration key {name}{nearest(name, BROKER_KEYS)}")
    listener = _listener_of(name)
    if listener is not None:
        if listener != listener.lower():
            raise ConfigError(f"{name}: write the listener in small letters, {listener.lower()}")
        if key.name not in PER_LISTENER and not key.idle:
            raise ConfigError(f"{key.name} cannot be given for one listener alone; set {key.name} itself")
    return key


def _listener_of(name: str) -> str | None:
    """The listener that a name such as listener.name.plaintext.max.connections is for."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    return name[len(LISTENER_PREFIX) :].partition(".")[0]


def check_dynamic(texts: Mapping[str, str], *, per_broker: bool) -> dict[str, Value]:
    """The typed values of what may be set while running, on one broker or on all; else InvalidConfig."""
    values: dict[str, Value] = {}
    for name, text in texts.items():
        try:
            key = known_key(name)
            values[name] = key.parse(text)
        except (ConfigError, BadValue) as error:
            raise InvalidConfig(str(error)) from None
        if key.scope == "read-only":
            raise InvalidConfig(f"{name} cannot be changed while the broker runs")
        if key.scope == "per-broker" and not per_broker:
            raise InvalidConfig(f"{name} can only be set on a single broker, not on all")
    return values
