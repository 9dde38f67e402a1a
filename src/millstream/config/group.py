"""The keys that a group can set for itself, for members of the consumer protocol: Kafka's names and limits.

A group's value is its own, else the broker's value of the key's synonym. The broker also says between which
limits a group's own value lies. Kafka's keys of share and streams groups, which are not served, are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.config.broker import BrokerConfig, Source
from millstream.config.checks import at_least
from millstream.config.describe import Described, DescribedSynonym, set_for
from millstream.config.keys import KIND_CODES, BadValue, ConfigKey, Synonym, by_name, nearest
from millstream.errors import InvalidConfig

SESSION_TIMEOUT_MS = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL_MS = "consumer.assignment.interval.ms"

GROUP_CONFIG_KEYS = by_name(
    (
        ConfigKey(
            ASSIGNMENT_INTERVAL_MS,
            "int",
            1000,
            "The shortest time between two assignments.",
            at_least(0),
            synonyms=(Synonym("group.consumer.assignment.interval.ms"),),
        ),
        ConfigKey(
            HEARTBEAT_INTERVAL_MS,
            "int",
            5000,
            "How often members send a heartbeat.",
            at_least(1),
            synonyms=(Synonym("group.consumer.heartbeat.interval.ms"),),
        ),
        ConfigKey(
            SESSION_TIMEOUT_MS,
            "int",
            45_000,
            "A member that is silent for this long is taken out of the group.",
            at_least(1),
            synonyms=(Synonym("group.consumer.session.timeout.ms"),),
        ),
    )
)

GroupConfig = Mapping[str, int]
"""What a group sets for itself."""


def parse_group_config(texts: Mapping[str, str]) -> GroupConfig:
    """The typed values; InvalidConfig if a key is not known or does not take its text."""
    values: dict[str, int] = {}
    for name, text in texts.items():
        key = GROUP_CONFIG_KEYS.get(name)
        if key is None:
            raise InvalidConfig(f"unknown config {name} of groups{nearest(name, GROUP_CONFIG_KEYS)}")
        try:
            value = key.parse(text)
        except BadValue as error:
            raise InvalidConfig(str(error)) from None
        assert isinstance(value, int)
        values[name] = value
    return values


def check_group_config(texts: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raise InvalidConfig unless a group may set all this."""
    values = parse_group_config(texts)
    for name, value in values.items():
        least, most = (broker[f"group.{name.replace('.', f'.{limit}.', 1)}"] for limit in ("min", "max"))
        if not least <= value <= most:
            raise InvalidConfig(f"{name} lies between {least} and {most} on this broker, not at {value}")
    heartbeat_ms = values.get(HEARTBEAT_INTERVAL_MS, broker["group.consumer.heartbeat.interval.ms"])
    session_ms = values.get(SESSION_TIMEOUT_MS, broker["group.consumer.session.timeout.ms"])
    if values and heartbeat_ms >= session_ms:
        raise InvalidConfig(
            f"a heartbeat every {heartbeat_ms} ms is too seldom for sessions of {session_ms} ms"
        )


def describe_group(texts: Mapping[str, str], broker: BrokerConfig) -> list[Described]:
    """Every key of a group that sets `texts`, on this broker."""
    described = []
    for key in GROUP_CONFIG_KEYS.values():
        synonyms = set_for(key.synonyms, broker)
        if key.name in texts:
            synonyms.insert(0, DescribedSynonym(key.name, texts[key.name], Source.GROUP))
        value, source = synonyms[0].value, synonyms[0].source
        described.append(
            Described(
                key.name, value, False, source, False, synonyms, KIND_CODES[key.kind], key.documentation
            )
        )
    return described
