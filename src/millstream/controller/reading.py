"""What the registry says of topics and of the brokers' configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from millstream.cluster.metadata import BrokerNode, Topic
from millstream.controller import tree
from millstream.registry.contract import Delete, Node, NoNode, Operation, Registry

log = logging.getLogger(__name__)

CHUNK = 1000
"""How many nodes are read at once."""


async def read_topics(registry: Registry, names: Sequence[str]) -> dict[str, Topic]:
    """Those of the topics that exist."""
    nodes: dict[str, tree.TopicNode] = {}
    for name, found in zip(names, await _read(registry, map(tree.topic_path, names)), strict=True):
        if found is not None:
            nodes[name] = msgspec.json.decode(found.data, type=tree.TopicNode)
    configs: dict[str, dict[str, str]] = {}
    paths = [f"{tree.TOPIC_CONFIGS}/{name}" for name in nodes]
    for name, found in zip(nodes, await _read(registry, paths), strict=True):
        configs[name] = {} if found is None else msgspec.json.decode(found.data, type=tree.ConfigNode).config
    places = [(name, index) for name, node in nodes.items() for index in range(len(node.partitions))]
    states: dict[str, dict[int, tuple[tree.StateNode, int]]] = {name: {} for name in nodes}
    found_states = await _read(registry, (tree.state_path(name, index) for name, index in places))
    for (name, index), found in zip(places, found_states, strict=True):
        if found is not None:
            states[name][index] = (msgspec.json.decode(found.data, type=tree.StateNode), found.version)
    return {name: tree.topic_of(name, node, states[name], configs[name]) for name, node in nodes.items()}


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


async def read_seen(registry: Registry) -> dict[int, int]:
    """The registrations, by broker, whose consequences earlier controllers have drawn."""
    names = await registry.children(tree.SEEN_BROKERS)
    nodes = await _read(registry, (f"{tree.SEEN_BROKERS}/{name}" for name in names))
    return {
        int(name): msgspec.json.decode(found.data, type=tree.SeenNode).epoch
        for name, found in zip(names, nodes, strict=True)
        if found is not None
    }


async def read_broker_configs(registry: Registry) -> dict[str, dict[str, str]]:
    """What is set while running, by broker, and for all (DEFAULT_BROKER)."""
    names = await registry.children(tree.BROKER_CONFIGS)
    nodes = await _read(registry, (f"{tree.BROKER_CONFIGS}/{name}" for name in names))
    return {
        name: msgspec.json.decode(found.data, type=tree.ConfigNode).config
        for name, found in zip(names, nodes, strict=True)
        if found is not None
    }


async def _read(registry: Registry, paths: Iterable[str]) -> list[Node | None]:
    wanted = list(paths)
    found: list[Node | None] = []
    for start in range(0, len(wanted), CHUNK):
        found += await registry.get_many(wanted[start : start + CHUNK])
    return found


async def partition_numbers(registry: Registry, name: str) -> list[int]:
    """The partitions of a topic that have a node, whatever the topic's own node says."""
    try:
        return sorted(map(int, await registry.children(f"{tree.topic_path(name)}/partitions")))
    except NoNode:
        return []


async def partition_removals(registry: Registry, name: str, numbers: Sequence[int]) -> list[Operation]:
    """What deletes the nodes of these partitions, which exist; their states may not."""
    states = [tree.state_path(name, number) for number in numbers]
    operations: list[Operation] = []
    for state, found in zip(states, await _read(registry, states), strict=True):
        if found is not None:
            operations.append(Delete(state))
        operations.append(Delete(state.removesuffix("/state")))
    return operations
