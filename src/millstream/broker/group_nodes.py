"""Groups as they are shown in the registry: who is in them, who reads what, how far they are.

    /consumers/[group]/ids/[member]                  ephemeral   see MemberNode
    /consumers/[group]/owners/[topic]/[partition]    ephemeral   the member's id
    /consumers/[group]/offsets/[topic]/[partition]   persistent  the offset

The nodes are for whoever looks; nothing here reads them back, the truth is in `__consumer_offsets`. What
changed is remembered, and once a second written, all in one multi: never while somebody waits for an
acknowledgement. If the registry refuses, it is tried again a second later. Ephemeral nodes belong to the
broker that coordinates the group, and go with it. Names that a path cannot hold are written with percent
signs (`escape`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec

from millstream.clock import Clock
from millstream.coordinator.groups.offset_format import partition_at
from millstream.coordinator.groups.presence import Presence, presences
from millstream.coordinator.groups.shard import GroupShard, Watcher
from millstream.coordinator.groups.topics import Topics
from millstream.model import TopicPartition
from millstream.registry.contract import (
    Create,
    Delete,
    Node,
    Operation,
    Registry,
    RegistryError,
    SessionLost,
    Set,
    TooLarge,
    ancestors,
)

log = logging.getLogger(__name__)

ROOT = "/consumers"
SHOW_GROUPS_MS = 1000
MAX_NODES = 4000
"""How many nodes one multi changes at most, about; the rest has to wait for the next."""

T = TypeVar("T")


class MemberNode(msgspec.Struct):
    """A member, as the consumers of ZooKeeper's time wrote themselves."""

    subscription: dict[str, int]
    pattern: str
    timestamp: str
    version: int = 1


class _Shown(NamedTuple):
    """An ephemeral node that was made here: what it stands for, and the number of the write."""

    content: bytes
    created: int


def escape(name: str) -> str:
    """A name as one part of a path; those with nothing unusual in them stay as they are.

    What ZooKeeper does not take counts as unusual: one such name would keep all groups from being shown.
    """
    if name in (".", ".."):
        return name.replace(".", "%2E")
    if name.isascii() and name.isprintable() and "/" not in name and "%" not in name:
        return name
    return "".join(
        "".join(f"%{byte:02X}" for byte in each.encode("utf-8", "surrogatepass"))
        if each in "/%" or not each.isprintable() or "\ufff0" <= each <= "\uffff"
        else each
        for each in name
    )


class GroupNodes(Watcher):
    """Writes down what changed, later."""

    def __init__(
        self, registry: Registry, clock: Clock, topics: Topics, find: Callable[[str], GroupShard | None]
    ) -> None:
        """`find` finds the shard of a group that this broker coordinates."""
        self._registry = registry
        self._clock = clock
        self._topics = topics
        self._find = find
        self._session_id = 0
        self._max_nodes = MAX_NODES
        self._groups: dict[str, None] = {}
        """Groups whose members or assignments have changed."""
        self._offsets: dict[tuple[bytes, bytes], None] = {}
        """Groups and places whose offsets have changed."""
        self._mine: dict[str, dict[str, _Shown]] = {}
        """The ephemeral nodes of this session, by group and path, with what they stand for."""
        self._folders: set[str] = set()
        """Nodes above others that are known to be there."""

    # Told by the shards

    def group_changed(self, group_id: str) -> None:
        if group_id:
            self._groups[group_id] = None

    def offset_changed(self, group: bytes, place: bytes) -> None:
        if group:
            self._offsets[group, place] = None

    # Once a second

    async def show(self) -> None:
        """Bring the registry up to date, as far as one multi goes."""
        self._meet_new_session()
        if not self._groups and not self._offsets:
            return
        wanted, count = await self._take_groups(max(self._max_nodes // 2, 1))
        offsets = _take(self._offsets, max(self._max_nodes - count, 1))
        try:
            await self._write(wanted, offsets)
            self._max_nodes = min(self._max_nodes * 2, MAX_NODES)
        except RegistryError as error:
            if isinstance(error, TooLarge):
                self._max_nodes = max(self._max_nodes // 2, 1)
            log.info("groups are not shown in the registry yet: %s", error)
            self._groups.update(dict.fromkeys(wanted))
            self._offsets.update(dict.fromkeys(offsets))
            self._folders.clear()

    def _meet_new_session(self) -> None:
        """What was ephemeral went with the session before."""
        if self._registry.session_id != self._session_id:
            self._session_id = self._registry.session_id
            self._groups.update(dict.fromkeys(self._mine))
            self._mine.clear()
            self._folders.clear()

    async def _take_groups(self, max_nodes: int) -> tuple[dict[str, dict[str, bytes]], int]:
        """What groups that changed should show, and about how many nodes that changes; the rest has to wait.

        A group that is too large is taken alone, and in parts. All else has its turn between two groups:
        there may be thousands, with many members each.
        """
        wanted: dict[str, dict[str, bytes]] = {}
        room = max_nodes
        for group_id in list(self._groups):
            nodes = self._wanted(group_id)
            changes = self._changes(group_id, nodes)
            if len(changes) > room and wanted:
                break
            del self._groups[group_id]
            if len(changes) > room:
                changes = changes[:room]
                nodes = self._with_some(group_id, nodes, changes)
                self._groups[group_id] = None
            wanted[group_id] = nodes
            room -= len(changes) + 1
            if room <= 0:
                break
            await asyncio.sleep(0)
        return wanted, max_nodes - room

    def _changes(self, group_id: str, nodes: Mapping[str, bytes]) -> list[str]:
        """The paths of what a group shows otherwise than it should."""
        paths = {**self._mine.get(group_id, {}), **nodes}
        return [path for path in paths if self._content_of(group_id, path) != nodes.get(path)]

    def _with_some(
        self, group_id: str, nodes: Mapping[str, bytes], changes: Iterable[str]
    ) -> dict[str, bytes]:
        """What a group shows with some of the changes made that it needs."""
        shown = {path: each.content for path, each in self._mine.get(group_id, {}).items()}
        for path in changes:
            if path in nodes:
                shown[path] = nodes[path]
            else:
                del shown[path]
        return shown

    async def _write(
        self, wanted: Mapping[str, Mapping[str, bytes]], offsets: Iterable[tuple[bytes, bytes]]
    ) -> None:
        session_id = self._session_id
        positions = self._positions(offsets)
        changed = [path for group_id, nodes in wanted.items() for path in self._changes(group_id, nodes)]
        folders = list(
            dict.fromkeys(
                above
                for path in (*changed, *(path for path, data in positions.items() if data is not None))
                for above in ancestors(path)[1:]
                if above not in self._folders
            )
        )
        paths = [*changed, *positions, *folders]
        existing = dict(zip(paths, await self._registry.get_many(paths), strict=True))
        operations: list[Operation] = [Create(path) for path in folders if existing[path] is None]
        for group_id, nodes in wanted.items():
            operations += self._ephemeral(self._mine.get(group_id, {}), nodes, existing)
        for path, data in positions.items():
            operations += _persistent(path, data, existing[path])
        if operations:
            await self._registry.multi(operations)
        written = dict(zip(changed, await self._registry.get_many(changed), strict=True))
        if self._registry.session_id != session_id:
            raise SessionLost("the session ended meanwhile")
        self._folders.update(folders)
        for group_id, nodes in wanted.items():
            self._remember(group_id, nodes, written)
            await self._remove_if_gone(group_id)

    def _content_of(self, group_id: str, path: str) -> bytes | None:
        shown = self._mine.get(group_id, {}).get(path)
        return None if shown is None else shown.content

    def _remember(
        self, group_id: str, nodes: Mapping[str, bytes], written: Mapping[str, Node | None]
    ) -> None:
        before = self._mine.pop(group_id, {})
        if nodes:
            mine = self._mine[group_id] = {}
            for path, content in nodes.items():
                if path not in written:
                    mine[path] = before[path]  # as it was
                elif (node := written[path]) is not None:
                    mine[path] = _Shown(content, node.created)
                else:  # another broker removed it meanwhile: see whether the group is still here
                    self._groups[group_id] = None

    def _wanted(self, group_id: str) -> dict[str, bytes]:
        """The ephemeral nodes that a group should have, with what they stand for."""
        shard = self._find(group_id)
        group = None if shard is None else shard.find(group_id)
        if group is None:
            return {}
        base = f"{ROOT}/{escape(group_id)}"
        nodes: dict[str, bytes] = {}
        for presence in presences(group, self._topics):
            nodes[f"{base}/ids/{escape(presence.member_id)}"] = _content(presence)
            for topic, partition in self._owned(base, group_id, presence):
                nodes[f"{base}/owners/{topic}/{partition}"] = presence.member_id.encode()
        return nodes

    def _owned(self, base: str, group_id: str, presence: Presence) -> list[TopicPartition]:
        """What a member reads; while its group is not agreed on that, what it was last seen to read."""
        if presence.partitions is not None:
            return presence.partitions
        owned = []
        for path, (content, _) in self._mine.get(group_id, {}).items():
            kind, _, place = path.removeprefix(f"{base}/").partition("/")
            if kind == "owners" and content == presence.member_id.encode():
                topic, _, partition = place.partition("/")
                owned.append(TopicPartition(topic, int(partition)))
        return owned

    def _positions(self, offsets: Iterable[tuple[bytes, bytes]]) -> dict[str, bytes | None]:
        """The nodes of offsets that this broker knows about; None where there is none any more."""
        found: dict[str, bytes | None] = {}
        for group, place in offsets:
            group_id = group.decode("utf-8", "replace")
            shard = self._find(group_id)
            if shard is not None:
                partition = partition_at(place)
                committed = shard.offsets.get(group_id, partition)
                path = f"{ROOT}/{escape(group_id)}/offsets/{escape(partition.topic)}/{partition.partition}"
                found[path] = None if committed is None else str(committed.offset).encode()
        return found

    def _ephemeral(
        self, mine: Mapping[str, _Shown], nodes: Mapping[str, bytes], existing: Mapping[str, Node | None]
    ) -> list[Operation]:
        """What makes the ephemeral nodes of a group those that it should have.

        One that another broker made, whose session has not ended, is replaced; and if the group has gone
        to another broker, which has replaced ours, it is left alone.
        """
        operations: list[Operation] = [
            Delete(path) for path in mine if path not in nodes and _is(existing[path], mine[path])
        ]
        for path, content in nodes.items():
            shown = mine.get(path)
            if shown is not None and shown.content == content:
                continue
            data = self._data(path, content)
            if shown is not None and _is(existing[path], shown):
                operations.append(Set(path, data))
            else:
                if existing[path] is not None:
                    operations.append(Delete(path))
                operations.append(Create(path, data, ephemeral=True))
        return operations

    def _data(self, path: str, content: bytes) -> bytes:
        """What is written in a node: of a member, also since when."""
        if path.split("/", 4)[3] != "ids":
            return content
        told: dict[str, Any] = msgspec.json.decode(content)
        return msgspec.json.encode(MemberNode(timestamp=str(self._clock.now_ms()), **told))

    async def _remove_if_gone(self, group_id: str) -> None:
        """Of a group that was deleted nothing stays."""
        shard = self._find(group_id)
        if shard is None or shard.find(group_id) is not None:
            return
        base = f"{ROOT}/{escape(group_id)}"
        if await self._registry.exists(base) is None:
            return
        paths = await self._below(base)
        self._folders.difference_update(paths)
        await self._registry.multi([Delete(path) for path in reversed(paths)])

    async def _below(self, path: str) -> list[str]:
        """A node and all below it, each before those below it."""
        paths = [path]
        for name in await self._registry.children(path):
            paths += await self._below(f"{path}/{name}")
        return paths


def _is(node: Node | None, shown: _Shown) -> bool:
    return node is not None and node.created == shown.created


def _content(presence: Presence) -> bytes:
    return msgspec.json.encode(
        {"subscription": dict.fromkeys(sorted(presence.topics), 1), "pattern": presence.pattern}
    )


def _persistent(path: str, data: bytes | None, existing: Node | None) -> list[Operation]:
    if existing is None:
        return [] if data is None else [Create(path, data)]
    if data is None:
        return [Delete(path)]
    return [] if existing.data == data else [Set(path, data)]


def _take(waiting: dict[T, None], count: int) -> list[T]:
    """Take the oldest out."""
    taken = list(islice(waiting, count))
    for each in taken:
        del waiting[each]
    return taken
