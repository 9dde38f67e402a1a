"""What DescribeConfigs tells of a topic's or a broker's configuration: values, sources, synonyms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millstream.config.broker import BrokerConfig, Source
from millstream.config.broker_keys import BROKER_KEYS, find_key
from millstream.config.keys import KIND_CODES, ConfigKey, Synonym
from millstream.config.topic import HOUR_MS, MINUTE_MS, TOPIC_KEYS, parse_topic_overrides


class DescribedSynonym(NamedTuple):
    """A text that gives the value or would, were the stronger ones not set."""

    name: str
    value: str | None
    source: Source


class Described(NamedTuple):
    """One key as DescribeConfigs tells it. Sensitive values are None."""

    name: str
    value: str | None
    is_read_only: bool
    source: Source
    is_sensitive: bool
    synonyms: list[DescribedSynonym]
    """All that is set for the key and its synonyms, the one that holds first."""
    kind_code: int
    documentation: str


def describe_topic(overrides: Mapping[str, str], broker: BrokerConfig) -> list[Described]:
    """Every key of a topic that sets `overrides`, on this broker."""
    values = parse_topic_overrides(overrides)
    described = []
    for key in TOPIC_KEYS.values():
        if key.is_internal and key.name not in overrides:
            continue
        synonyms = set_for(key.synonyms, broker)
        value, source = broker.topic_default(key.name)
        if key.name in values:
            value, source = values[key.name], Source.TOPIC
            synonyms.insert(0, DescribedSynonym(key.name, key.render(value), source))
        described.append(_described(key, key.name, key.render(value), source, synonyms, is_read_only=False))
    return described


def describe_broker(broker: BrokerConfig, *, is_default: bool = False) -> list[Described]:
    """Every key of a broker; with `is_default` what is set for all brokers while they run."""
    if is_default:
        layer = broker.layers[1]
        names = sorted(layer.texts)
        return [_broker_key(name, broker, Source.DYNAMIC_DEFAULT) for name in names]
    special = {name for layer in broker.layers for name in layer.texts if name not in BROKER_KEYS}
    return [_broker_key(name, broker, None) for name in sorted([*BROKER_KEYS, *special])]


_FAMILIES: tuple[tuple[Synonym, ...], ...] = (
    (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
    ),
    (Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    (Synonym("log.dirs"), Synonym("log.dir")),
    (Synonym("node.id"), Synonym("broker.id")),
)
_FAMILY_OF = {synonym.name: family for family in _FAMILIES for synonym in family}


def _broker_key(name: str, broker: BrokerConfig, only: Source | None) -> Described:
    key = find_key(name)
    assert key is not None
    synonyms = set_for(_FAMILY_OF.get(name, (Synonym(name),)), broker)
    if only is not None:
        synonyms = [synonym for synonym in synonyms if synonym.source == only]
    own = [synonym for synonym in synonyms if synonym.name == name]
    source = own[0].source if own else Source.DEFAULT
    text = own[0].value if only is not None else key.render(broker[name])
    return _described(key, name, text, source, synonyms, is_read_only=key.scope == "read-only")


def _described(
    key: ConfigKey,
    name: str,
    text: str | None,
    source: Source,
    synonyms: list[DescribedSynonym],
    *,
    is_read_only: bool,
) -> Described:
    return Described(
        name=name,
        value=None if key.is_sensitive else text,
        is_read_only=is_read_only,
        source=source,
        is_sensitive=key.is_sensitive,
        synonyms=synonyms,
        kind_code=KIND_CODES[key.kind],
        documentation=key.documentation,
    )


def set_for(names: Iterable[Synonym], broker: BrokerConfig) -> list[DescribedSynonym]:
    """What the layers set for these names, and their defaults, the strongest first."""
    found = []
    for layer in broker.layers:
        for synonym in names:
            if synonym.name in layer.texts:
                key = find_key(synonym.name)
                assert key is not None
                text = None if key.is_sensitive else layer.texts[synonym.name]
                found.append(DescribedSynonym(synonym.name, text, layer.source))
    for synonym in names:
        default = BROKER_KEYS.get(synonym.name)
        if default is not None and default.default is not None:
            text = None if default.is_sensitive else default.render(default.default)
            found.append(DescribedSynonym(synonym.name, text, Source.DEFAULT))
    return found
