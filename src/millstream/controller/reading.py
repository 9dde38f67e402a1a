"""What the registry says of topics and of the brokers' configuration.

People may write there too. What cannot be read is said in the log, and stands in the way of nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec

from millstream.cluster.metadata import BrokerNode, Topic
from millstream.config.broker import check_dynamic
from millstream.config.topic import parse_topic_overrides
from millstream.controller import tree
from millstream.errors import KafkaError
from millstream.model import check_topic_name
from millstream.registry.contract import Delete, Node, NoNode, Operation, Registry

log = logging.getLogger(__name__)

CHUNK = 1000
"""How many nodes are read at once."""


async def read_topics(registry: Registry, names: Sequence[str]) -> tuple[dict[str, Topic], dict[str, str]]:
    """Those of the topics that exist; and why the others cannot be read, whose nodes describe none."""
    nodes: dict[str, tree.TopicNode] = {}
    unreadable: dict[str, str] = {}
    for name, found in zip(names, await _read(registry, map(tree.topic_path, names)), strict=True):
        if found is not None:
            try:
                check_topic_name(name)
                nodes[name] = msgspec.json.decode(found.data, type=tree.TopicNode)
            except (ValueError, KafkaError) as error:
                unreadable[name] = f"{tree.topic_path(name)}: {error}"
    paths = [f"{tree.TOPIC_CONFIGS}/{name}" for name in nodes]
    configs = dict(zip(nodes, await _read(registry, paths), strict=True))
    places = [(name, index) for name, node in nodes.items() for index in range(len(node.partitions))]
    states: dict[str, dict[int, Node]] = {name: {} for name in nodes}
    found_states = await _read(registry, (tree.state_path(name, index) for name, index in places))
    for (name, index), found in zip(places, found_states, strict=True):
        if found is not None:
            states[name][index] = found
    topics: dict[str, Topic] = {}
    ids: dict[UUID, str] = {}
    for name, node in nodes.items():
        try:
            topic = _topic(name, node, states[name], configs[name])
            if topic.topic_id in ids:
                raise ValueError(f"its id is that of the topic {ids[topic.topic_id]}")
            ids[topic.topic_id] = name
            topics[name] = topic
        except (ValueError, KafkaError) as error:
            unreadable[name] = f"{tree.topic_path(name)}, its configuration or its partitions: {error}"
    return topics, unreadable


def _topic(name: str, node: tree.TopicNode, states: dict[int, Node], config: Node | None) -> Topic:
    """ValueError or InvalidConfig if that is none."""
    overrides = {} if config is None else msgspec.json.decode(config.data, type=tree.ConfigNode).config
    parse_topic_overrides(overrides)
    decoded = {
        index: (msgspec.json.decode(found.data, type=tree.StateNode), found.version)
        for index, found in states.items()
    }
    return tree.topic_of(name, node, decoded, overrides)


async def read_brokers(registry: Registry) -> dict[int, tuple[BrokerNode, bool]]:
    """The live brokers, and whether the last stop of each was clean."""
    names = await registry.children(tree.BROKERS)
    brokers = {}
    nodes = await _read(registry, (f"{tree.BROKERS}/{name}" for name in names))
    for name, found in zip(names, nodes, strict=True):
        if found is None:
            continue
        try:
            node = msgspec.json.decode(found.data, type=tree.BrokerIdNode)
            brokers[int(name)] = tree.broker_of(int(name), node, found.created), node.was_clean
        except ValueError as error:  # msgspec's errors are some, too
            log.warning("%s/%s is no broker's registration: %s", tree.BROKERS, name, error)
    return brokers


async def read_broker(registry: Registry, broker_id: int) -> BrokerNode | None:
    try:
        found = await registry.get(f"{tree.BROKERS}/{broker_id}")
    except NoNode:
        return None
    return tree.broker_of(broker_id, msgspec.json.decode(found.data, type=tree.BrokerIdNode), found.created)


async def read_seen(registry: Registry) -> dict[int, tree.SeenNode]:
    """The registrations, by broker, whose consequences earlier controllers have drawn.

    Of one that cannot be read nothing is known: its consequences are drawn again.
    """
    names = await registry.children(tree.SEEN_BROKERS)
    nodes = await _read(registry, (f"{tree.SEEN_BROKERS}/{name}" for name in names))
    seen: dict[int, tree.SeenNode] = {}
    for name, found in zip(names, nodes, strict=True):
        if found is None or not name.isdecimal():
            continue
        try:
            node = msgspec.json.decode(found.data, type=tree.SeenNode)
        except ValueError as error:
            log.error("%s/%s cannot be read: %s", tree.SEEN_BROKERS, name, error)
            node = tree.SeenNode(-1, is_doubted=True)
        seen[int(name)] = node
    return seen


async def read_broker_configs(registry: Registry) -> dict[str, dict[str, str]]:
    """What is set while running, by broker, and for all (DEFAULT_BROKER).

    A value that may not be set, as an older version may have written it, does not count; others do.
    """
    names = await registry.children(tree.BROKER_CONFIGS)
    nodes = await _read(registry, (f"{tree.BROKER_CONFIGS}/{name}" for name in names))
    configs = {}
    for name, found in zip(names, nodes, strict=True):
        if found is not None:
            try:
                config = msgspec.json.decode(found.data, type=tree.ConfigNode).config
            except ValueError as error:
                log.error("%s/%s counts as empty: it cannot be read: %s", tree.BROKER_CONFIGS, name, error)
                continue
            configs[name] = _valid_config(name, config)
    return configs


def _valid_config(broker: str, config: dict[str, str]) -> dict[str, str]:
    valid: dict[str, str] = {}
    for key, text in config.items():
        try:
            check_dynamic({key: text}, per_broker=broker != tree.DEFAULT_BROKER)
            valid[key] = text
        except KafkaError as error:
            log.warning("what %s/%s has for %s does not count: %s", tree.BROKER_CONFIGS, broker, key, error)
    return valid


async def _read(registry: Registry, paths: Iterable[str]) -> list[Node | None]:
    wanted = list(paths)
    found: list[Node | None] = []
    for start in range(0, len(wanted), CHUNK):
        found += await registry.get_many(wanted[start : start + CHUNK])
    return found


async def partition_numbers(registry: Registry, name: str) -> list[int]:
    """The partitions of a topic that have a node, whatever the topic's own node says."""
    try:
        names = await registry.children(f"{tree.topic_path(name)}/partitions")
    except NoNode:
        return []
    return sorted(int(each) for each in names if each.isdecimal() and str(int(each)) == each)


async def partition_removals(registry: Registry, name: str, numbers: Sequence[int]) -> list[Operation]:
    """What deletes the nodes of these partitions, which exist; their states may not."""
    states = [tree.state_path(name, number) for number in numbers]
    operations: list[Operation] = []
    for state, found in zip(states, await _read(registry, states), strict=True):
        if found is not None:
            operations.append(Delete(state))
        operations.append(Delete(state.removesuffix("/state")))
    return operations


async def removals(registry: Registry, path: str) -> list[Operation]:
    """What deletes a node and all below it, whoever wrote that there."""
    names = await registry.children(path)
    below = [each for name in names for each in await removals(registry, f"{path}/{name}")]
    return [*below, Delete(path)]
