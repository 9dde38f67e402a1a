"""What groups set for themselves (`group` resources of the config APIs).

    /config/groups/[group]   persistent   {"version", "config": {key: text}}

Whichever broker is asked writes the node; all brokers watch them, because any may coordinate the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from millstream.broker.group_nodes import escape
from millstream.config.broker import BrokerConfig
from millstream.config.group import GroupConfig, check_group_config, parse_group_config
from millstream.controller import tree
from millstream.errors import CoordinatorNotAvailable, InvalidConfig, InvalidRequest
from millstream.registry.contract import BadVersion, Delete, NodeExists, NoNode, Registry, RegistryError

log = logging.getLogger(__name__)

ROOT = "/config/groups"
RETRY_SECONDS = 1.0
NOTHING: GroupConfig = {}

Alteration = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From the texts that hold to those that are to hold."""


class GroupConfigs:
    """Knows what all groups set. What another broker wrote is known here a moment later."""

    def __init__(self, registry: Registry, config: BrokerConfig) -> None:
        self._registry = registry
        self._config = config
        self._texts: dict[str, Mapping[str, str]] = {}
        self._values: dict[str, GroupConfig] = {}
        """Both by the name of the group's node."""
        self._watches: dict[str, Callable[[], None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_started = False
        self._is_fresh = False
        self._known = asyncio.Event()

    def of(self, group_id: str) -> GroupConfig:
        """What a group sets."""
        self.start()
        return self._values.get(escape(group_id), NOTHING) if self._values else NOTHING

    def texts(self, group_id: str) -> Mapping[str, str]:
        """What a group sets, as it was written."""
        self.start()
        return self._texts.get(escape(group_id), {})

    async def known(self) -> None:
        """Wait until what groups set has been read, or could not be read, for the first time."""
        self.start()
        await self._known.wait()

    async def alter(self, group_id: str, change: Alteration, *, validate_only: bool) -> None:
        """Let a group set something else; InvalidConfig if it may not."""
        if not group_id:
            raise InvalidRequest("there are no defaults of all groups but the brokers' own")
        path = f"{ROOT}/{escape(group_id)}"
        try:
            while not await self._try_to_alter(path, change, validate_only):
                pass
        except RegistryError as error:
            raise CoordinatorNotAvailable(f"the registry cannot be used at the moment: {error}") from error

    async def _try_to_alter(self, path: str, change: Alteration, validate_only: bool) -> bool:
        """False if somebody else wrote meanwhile."""
        (node,) = await self._registry.get_many([path])
        before = {} if node is None else _read(node.data)
        texts = dict(change(before))
        check_group_config(texts, self._config)
        if validate_only or texts == before:
            return True
        data = tree.dump(tree.ConfigNode(texts))
        try:
            if node is None:
                await self._registry.create(path, data, make_parents=True)
            elif texts:
                await self._registry.set(path, data, node.version)
            else:
                await self._registry.multi([Delete(path, node.version)])
        except (BadVersion, NoNode, NodeExists):
            return False
        self._take(path.removeprefix(f"{ROOT}/"), texts)
        return True

    # Keeping up with the registry

    def start(self) -> None:
        """Learn what there is, and whatever changes; does nothing if that has begun."""
        if not self._is_started:
            self._is_started = True
            self._watches[ROOT] = self._registry.watch(ROOT, self._changed)
            self._changed(ROOT)

    async def stop(self) -> None:
        for cancel in self._watches.values():
            cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _changed(self, _: str) -> None:
        self._is_fresh = False
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._refresh())

    async def _refresh(self) -> None:
        is_said = False
        while not self._is_fresh:
            self._is_fresh = True
            try:
                await self._read_all()
            except RegistryError as error:
                if not is_said:
                    log.warning("what groups set could not be read, and is tried again: %s", error)
                is_said = True
                self._known.set()
                self._is_fresh = False
                await asyncio.sleep(RETRY_SECONDS)
            self._known.set()

    async def _read_all(self) -> None:
        try:
            names = await self._registry.children(ROOT)
        except NoNode:
            names = []
        for name in names:
            path = f"{ROOT}/{name}"
            if path not in self._watches:
                self._watches[path] = self._registry.watch(path, self._changed)
        nodes = await self._registry.get_many([f"{ROOT}/{name}" for name in names])
        there = {name: node for name, node in zip(names, nodes, strict=True) if node is not None}
        for name in self._texts.keys() - there.keys():
            self._take(name, {})
            self._watches.pop(f"{ROOT}/{name}", lambda: None)()
        for name, node in there.items():
            self._take(name, _read(node.data))

    def _take(self, name: str, texts: Mapping[str, str]) -> None:
        self._texts.pop(name, None)
        self._values.pop(name, None)
        if not texts:
            return
        self._texts[name] = texts
        try:
            self._values[name] = parse_group_config(texts)
        except InvalidConfig as error:
            log.warning("what the group %s sets is passed over: %s", name, error.message)


def _read(data: bytes) -> Mapping[str, str]:
    """What a node says; nothing if that cannot be read, for anybody may have written it."""
    try:
        return msgspec.json.decode(data, type=tree.ConfigNode).config
    except msgspec.DecodeError as error:
        log.warning("what a group sets is passed over: %s", error)
        return {}
