"""A registry in ZooKeeper, shared by the brokers of many machines.

`zookeeper://host1,host2:2182,host3/millstream` names the servers (port 2181 unless said) and the node below
which the tree lies; it is made if it does not exist. The nodes are ZooKeeper's own, as its `zkCli.sh` shows
them: versions are its data versions, numbers of writes its transaction ids. ZooKeeper 3.6 or newer.

- Calls wait for a connection, and raise Unavailable after the session time-out. A write whose connection
  broke before its answer came raises Unavailable too: it may have been made. Reads on the next connection
  show whether it was: each connection begins with a `sync`, before anything else that waits to be sent, and
  reads behind it come after what was under way.
- A request is at most MAX_REQUEST_BYTES long, since a server cuts off who sends it more than a megabyte
  (`jute.maxbuffer`). A larger `multi` is refused; a larger `get_many` is read in several parts.
- ZooKeeper's watches fire once. They are set again first and called then, so that whoever reads after the
  call sees the change, and the next change calls again. After a lost connection all are set and called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from typing import Any, NoReturn

from kazoo import exceptions as zk
from kazoo.protocol.serialization import Transaction

from millstream.clock import Clock, SystemClock
from millstream.registry.contract import (
    ANY,
    BadVersion,
    Callback,
    Check,
    Create,
    Delete,
    NoChildrenAllowed,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Registry,
    RegistryError,
    SessionLost,
    Set,
    TooLarge,
    Unavailable,
    check_path,
)
from millstream.registry.ensemble import Ensemble
from millstream.registry.multi_read import MultiRead
from millstream.registry.outage import Outage
from millstream.registry.watches import Watches
from millstream.registry.zookeeper_watch import ZookeeperWatch

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 900_000
MAX_CALLS = 64
"""Calls under way at once; more wait their turn, in order."""

PAUSE_S = 0.2
"""How long a session that could not begin is not tried again."""

_ERRORS: dict[type[Exception], tuple[type[RegistryError], str]] = {
    zk.NoNodeError: (NoNode, "there is no node {path}, or none above it"),
    zk.NodeExistsError: (NodeExists, "there is a node {path} already"),
    zk.BadVersionError: (BadVersion, "{path} has another version than the one asked for"),
    zk.NotEmptyError: (NotEmpty, "{path} has children"),
    zk.NoChildrenForEphemeralsError: (NoChildrenAllowed, "the node above {path} is ephemeral"),
    zk.SessionExpiredError: (SessionLost, "the session is over; start a new one"),
    zk.ConnectionClosedError: (SessionLost, "the session is over; start a new one"),
    zk.ConnectionLoss: (Unavailable, "the connection to ZooKeeper broke"),
    zk.OperationTimeoutError: (Unavailable, "ZooKeeper did not answer in time"),
    zk.SessionMovedError: (Unavailable, "the connection to ZooKeeper moved"),
}


def parse_address(text: str) -> tuple[str, str]:
    """The servers, and the path of the tree's root ("" for ZooKeeper's own), of a zookeeper:// address."""
    servers, slash, root = text.removeprefix("zookeeper://").partition("/")
    if not text.startswith("zookeeper://") or not all(servers.split(",")):
        raise RegistryError(f"{text!r} is not an address such as zookeeper://host1,host2:2181/millstream")
    if root:
        check_path(slash + root)
    return servers, slash + root if root else ""


class ZookeeperRegistry(Registry):
    """A session with the tree at a zookeeper:// address."""

    def __init__(
        self,
        address: str,
        session_timeout_ms: int = 6000,
        clock: Clock | None = None,
        *,
        patience_s: float = 0,
    ) -> None:
        """`patience_s` is for how long the first session is tried for: the servers may be starting, too."""
        self._servers, self._root = parse_address(address)
        self._patience_s = patience_s
        self._timeout_s = session_timeout_ms / 1000
        self._clock = clock if clock is not None else SystemClock()
        self._watches = Watches()
        self._armed: dict[str, ZookeeperWatch] = {}
        self._ensemble: Ensemble | None = None
        self._ending: Ensemble | None = None
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self._session = 0
        self._is_beginning = False
        self._outage = Outage("ZooKeeper", self._clock, self.session_deadline, self._failure)

    async def start(self) -> None:
        if self._ensemble is not None or self._is_beginning:
            raise RegistryError("the session has begun already")
        self._is_beginning = True
        try:
            ensemble = await self._begin()
        except RegistryError as error:
            self._outage.failed(str(error))
            raise
        finally:
            self._is_beginning = False
        # Until here calls are refused: whoever calls knows the number of the session that it is in.
        is_first = self._session == 0
        self._ensemble, self._ending = ensemble, None
        self._session = ensemble.session_id
        if ensemble.is_connected:
            self._outage.back()
        else:
            self._outage.broke()
        self._arm_all()
        if not is_first:
            self._watches.changed(None)

    async def _begin(self) -> Ensemble:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        patience_s = self._patience_s if self._session == 0 else 0
        while True:
            try:
                return await self._begin_once()
            except (SessionLost, Unavailable) as error:
                tried_s = loop.time() - begun
                if tried_s >= patience_s > 0:
                    advice = "check that the servers run, and --registry"
                    raise type(error)(f"{error}. It was tried for {tried_s:.0f} s: {advice}") from error
                if tried_s >= patience_s:
                    raise
                logger.warning("the registry is tried again: %s", error)
                await asyncio.sleep(PAUSE_S)

    async def _begin_once(self) -> Ensemble:
        await self._wait_for_ending()
        ensemble = self._ending = Ensemble(self._servers, self._timeout_s, self._clock, self)
        try:
            await ensemble.start()
            await self._make_root(ensemble)
            if ensemble.is_over:
                raise SessionLost("the session was lost as soon as it had begun")
        except BaseException:
            await ensemble.stop()
            raise
        return ensemble

    async def close(self) -> None:
        if self._ensemble is not None:
            self._ensemble, self._ending = None, self._ensemble
            self._outage.forget()
        self._disarm_all()
        await self._wait_for_ending()

    @property
    def session_id(self) -> int:
        return self._session

    def session_deadline(self) -> float:
        return self._ensemble.lease.deadline if self._ensemble is not None else float("-inf")

    @property
    def session_timeout_s(self) -> float:
        return self._ensemble.granted_s if self._ensemble is not None else self._timeout_s

    async def get(self, path: str) -> Node:
        check_path(path)
        data, stat = await self._call(lambda client: client.get_async(self._full(path)), path)
        return _node(data, stat)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            check_path(path)
        nodes: list[Node | None] = []
        for part in _parts([self._full(path) for path in paths]):
            answer = await self._call(MultiRead(part).send)
            nodes += [None if found is None else _node(*found) for found in answer]
        return nodes

    async def children(self, path: str) -> list[str]:
        check_path(path)
        names = await self._call(lambda client: client.get_children_async(self._full(path)), path)
        if self._full(path) == "/":
            names.remove("zookeeper")
        return sorted(names)

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        for operation in operations:
            check_path(operation.path)
            if operation.path == "/" and isinstance(operation, Delete):
                raise RegistryError("the root cannot be deleted", "/")
            if operation.path == "/" and isinstance(operation, Create):
                raise NodeExists("there is a node / already", "/")
        if not operations:
            return []
        results = await self._call(lambda client: self._commit(client, operations), is_read=False)
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, Exception) and not isinstance(
                result, (zk.RolledBackError, zk.RuntimeInconsistency)
            ):
                _refuse(result, operation.path)
        return [_version(operation, result) for operation, result in zip(operations, results, strict=True)]

    def watch(self, path: str, callback: Callback) -> Callable[[], None]:
        check_path(path)
        cancel = self._watches.add(path, callback)
        self._arm(path)

        def forget() -> None:
            cancel()
            if not self._watches.has(path) and path in self._armed:
                self._armed.pop(path).cancel()

        return forget

    # ------------------------------------------------ what the session tells

    def connected(self, ensemble: Ensemble) -> None:
        if ensemble is self._ensemble:
            self._outage.back()
            self._arm_all()
            self._watches.changed(None)

    def suspended(self, ensemble: Ensemble) -> None:
        if ensemble is self._ensemble:
            self._outage.broke()

    def lost(self, ensemble: Ensemble) -> None:
        if ensemble is not self._ensemble:
            return
        self._ensemble, self._ending = None, ensemble
        self._outage.lost()
        self._stopping = asyncio.ensure_future(ensemble.stop())
        if self.on_session_lost is not None:
            self.on_session_lost()

    # ------------------------------------------------ calls

    async def _call(self, send: Callable[[Any], Any], path: str = "", is_read: bool = True) -> Any:
        """Have kazoo make a call in this session, and wait for its result."""
        if self._ensemble is None:
            raise SessionLost("the session is over; start a new one")
        return await self._call_in(self._ensemble, send, path, is_read)

    async def _call_in(
        self, ensemble: Ensemble, send: Callable[[Any], Any], path: str = "", is_read: bool = True
    ) -> Any:
        """As `_call`. Reads are made again on a new connection, and nothing in another session."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        async with self._calls:
            while True:
                if not await ensemble.wait_for_connection(deadline):
                    if ensemble.is_over:
                        raise SessionLost("the session is over; start a new one")
                    raise Unavailable("no ZooKeeper server can be reached")
                try:
                    async with asyncio.timeout_at(deadline):
                        return await ensemble.future(send(ensemble.client))
                except TimeoutError:
                    raise Unavailable("ZooKeeper did not answer in time") from None
                except zk.ConnectionLoss as error:
                    if not is_read:
                        _refuse(error, path)
                except zk.KazooException as error:
                    _refuse(error, path)

    def _commit(self, client: Any, operations: Sequence[Operation]) -> Any:
        transaction = client.transaction()
        for operation in operations:
            path = self._full(operation.path)
            if isinstance(operation, Create):
                transaction.create(path, bytes(operation.data), ephemeral=operation.ephemeral)
            elif isinstance(operation, Set):
                transaction.set_data(path, bytes(operation.data), operation.version)
            elif isinstance(operation, Delete):
                transaction.delete(path, operation.version)
            else:
                transaction.check(path, operation.version)
        size = len(Transaction(transaction.operations).serialize())
        if size > MAX_REQUEST_BYTES:
            raise TooLarge(
                f"{len(operations)} operations of {size} bytes are more than ZooKeeper takes at once"
                f" ({MAX_REQUEST_BYTES} bytes)",
                operations[0].path,
            )
        return transaction.commit_async()

    async def _make_root(self, ensemble: Ensemble) -> None:
        """Make what is missing of the tree's root. Where it exists, nodes above it may be write-protected."""
        missing = []
        path = self._root
        while path and await self._call_in(ensemble, methodcaller("exists_async", path), path) is None:
            missing.append(path)
            path = path.rpartition("/")[0]
        for path in reversed(missing):
            try:
                await self._call_in(ensemble, methodcaller("create_async", path), path)
            except NodeExists:
                pass  # another broker starts, too

    def _failure(self) -> str:
        return self._ensemble.failure if self._ensemble is not None else ""

    def _full(self, path: str) -> str:
        return self._root + path if path != "/" else self._root or "/"

    async def _wait_for_ending(self) -> None:
        if self._ending is not None:
            await self._ending.stop()
            self._ending = None

    # ------------------------------------------------ watches

    def _arm(self, path: str) -> None:
        ensemble = self._ensemble
        if path in self._armed or ensemble is None or not ensemble.is_connected:
            return
        self._armed[path] = ZookeeperWatch(ensemble, self._full(path), lambda: self._watches.changed((path,)))

    def _disarm_all(self) -> None:
        for watch in self._armed.values():
            watch.cancel()
        self._armed.clear()

    def _arm_all(self) -> None:
        self._disarm_all()
        for path in self._watches.paths():
            self._arm(path)


def _node(data: bytes | None, stat: Any) -> Node:
    return Node(data or b"", stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner != 0)


def _version(operation: Operation, result: Any) -> int:
    if isinstance(operation, Create):
        return 0
    if isinstance(operation, Set):
        return int(result.version)
    return operation.version if isinstance(operation, Check) else ANY


def _refuse(error: Exception, path: str) -> NoReturn:
    """Raise what the contract calls an error of ZooKeeper's."""
    for kind, (refusal, text) in _ERRORS.items():
        if isinstance(error, kind):
            raise refusal(text.format(path=path), path) from error
    raise RegistryError(
        f"ZooKeeper refused a call for {path}: {type(error).__name__} {error}", path
    ) from error


def _parts(paths: Sequence[str]) -> Iterator[list[str]]:
    """Paths by as many as fit into a request."""
    part: list[str] = []
    size = 0
    for path in paths:
        length = MultiRead.size(path)
        if part and size + length > MAX_REQUEST_BYTES:
            yield part
            part, size = [], 0
        part.append(path)
        size += length
    if part:
        yield part
