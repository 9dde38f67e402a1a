"""What the registry says of topics and of the brokers' configuration."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.cluster.metadata import Topic
from millstream.controller import tree
from millstream.registry.contract import Delete, NoNode, Operation, Registry


async def read_topic(registry: Registry, name: str) -> Topic:
    """A topic, or NoNode."""
    data = (await registry.get(tree.topic_path(name))).data
    node = msgspec.json.decode(data, type=tree.TopicNode)
    paths = [tree.state_path(name, index) for index in range(len(node.partitions))]
    config_node, *state_nodes = await registry.get_many([f"{tree.TOPIC_CONFIGS}/{name}", *paths])
    states = {}
    for index, found in enumerate(state_nodes):
        if found is not None:
            states[index] = (msgspec.json.decode(found.data, type=tree.StateNode), found.version)
    config: dict[str, str] = {}
    if config_node is not None:
        config = msgspec.json.decode(config_node.data, type=tree.ConfigNode).config
    return tree.topic_of(name, node, states, config)


async def read_broker_config(registry: Registry, name: str) -> dict[str, str]:
    """What is set while running for a broker, or for all (DEFAULT_BROKER)."""
    try:
        data = (await registry.get(f"{tree.BROKER_CONFIGS}/{name}")).data
    except NoNode:
        return {}
    return msgspec.json.decode(data, type=tree.ConfigNode).config


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
    for state, found in zip(states, await registry.get_many(states), strict=True):
        if found is not None:
            operations.append(Delete(state))
        operations.append(Delete(state.removesuffix("/state")))
    return operations
