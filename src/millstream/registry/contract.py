"""The registry: the cluster's small tree of versioned nodes, and what every store of it promises.

A node has a path (`/brokers/ids/1`), bytes, a version that begins at 0 and grows by one with each `set`,
and children. An *ephemeral* node belongs to the session that created it, has no children, and vanishes
with the session. The root `/` always exists.

- Writes are atomic, durable when they return, and seen by all in one order. `multi` applies all of its
  operations, in order, or none.
- A session reads its own writes at once; those of others when its watches fire, and never backwards.
- A watch stays until it is cancelled and fires after any change of its node's data, existence or list of
  children. Several changes may give one call, and a call may come without a change, but no change goes
  without a call. The change is visible to reads when the call is made.
- A session ends with `close`, or is lost: when its process ended, or was silent (stopped, cut off) for the
  session time-out. `session_deadline` is a time on the monotonic clock before which no other process can
  have declared it lost; whoever acts on ephemeral ownership compares it at every act, not by a timer.
- A lost session refuses every call with SessionLost until `start` begins a new one; watches are kept and
  all fire then.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millstream.errors import MillstreamError

ANY = -1
"""The version that matches every version."""


class RegistryError(MillstreamError):
    """Anything that a registry refuses. `path` is the node it is about."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class NoNode(RegistryError):
    """There is no such node, or no parent for a new one."""


class NodeExists(RegistryError):
    """There is such a node already."""


class BadVersion(RegistryError):
    """The node has another version than the one asked for."""


class NotEmpty(RegistryError):
    """The node has children and cannot be deleted."""


class NoChildrenAllowed(RegistryError):
    """The parent is ephemeral and cannot have children."""


class SessionLost(RegistryError):
    """The session is over; its ephemeral nodes are gone or will go."""


class Unavailable(RegistryError):
    """The registry did not answer in time. Whether a write was made is not known."""


class TooLarge(RegistryError):
    """More than the registry takes in one write; it may be made in several."""


class Node(NamedTuple):
    """What a node holds, and when it came to be."""

    data: bytes
    version: int
    created: int
    """The number of the write that created the node; numbers grow and are never used twice."""
    modified: int
    """The number of the write that last set its data."""
    is_ephemeral: bool


class Create(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False


class Set(NamedTuple):
    path: str
    data: bytes
    version: int = ANY


class Delete(NamedTuple):
    path: str
    version: int = ANY


class Check(NamedTuple):
    """Nothing but a condition: the node exists, and has this version."""

    path: str
    version: int = ANY


Operation = Create | Set | Delete | Check

Callback = Callable[[str], None]
"""What a watch calls, on the event loop, with the path that was watched."""

_PATH = re.compile(r"/|(/(?!\.{1,2}(/|$))[^/\x00-\x1f]+)+")


def check_path(path: str) -> None:
    """Raise RegistryError unless `path` is absolute, without empty, `.` or `..` parts."""
    if not _PATH.fullmatch(path):
        raise RegistryError(f"{path!r} is not a path such as /brokers/ids/1", path)


def split(path: str) -> tuple[str, str]:
    """A path's parent and its last name; the root is its own nameless child."""
    parent, _, name = path.rpartition("/")
    return parent or "/", name


def ancestors(path: str) -> list[str]:
    """The paths above `path`, from the top, without the root and without itself."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]


class Registry(ABC):
    """One process's session with a registry. Calls are made on the event loop that called `start`."""

    on_session_lost: Callable[[], None] | None = None
    """Called once, on the event loop, when the session is lost (not when it is closed)."""

    @abstractmethod
    async def start(self) -> None:
        """Begin a session; also after one was lost."""

    @abstractmethod
    async def close(self) -> None:
        """End the session: its ephemeral nodes vanish at once. Does nothing if there is none."""

    @property
    @abstractmethod
    def session_id(self) -> int:
        """The number of the session, never used twice; 0 before the first."""

    @abstractmethod
    def session_deadline(self) -> float:
        """Until when, on the monotonic clock, the session certainly holds."""

    @property
    @abstractmethod
    def session_timeout_s(self) -> float:
        """For how long a session may be silent, as the store grants it: maybe not what was asked for."""

    @abstractmethod
    async def get(self, path: str) -> Node:
        """The node, or NoNode."""

    @abstractmethod
    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Several nodes as they are at one moment; None for one that does not exist."""

    @abstractmethod
    async def children(self, path: str) -> list[str]:
        """The names of the node's children, sorted, or NoNode."""

    @abstractmethod
    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        """Apply all operations in order, or raise the error of the first that fails and apply none.

        Answers the version that each leaves its node with; ANY for a Delete, and for a Check what it
        asked for.
        """

    @abstractmethod
    def watch(self, path: str, callback: Callback) -> Callable[[], None]:
        """Call back after every change of the node, of its existence and of its list of children.

        The node need not exist. Answers a function that cancels the watch.
        """

    async def create(
        self, path: str, data: bytes = b"", ephemeral: bool = False, make_parents: bool = False
    ) -> None:
        """Create a node, and with `make_parents` the empty ones above it that are missing."""
        missing: list[str] = []
        while True:
            try:
                await self.multi([*map(Create, missing), Create(path, data, ephemeral)])
                return
            except (NoNode, NodeExists) as error:
                if not make_parents or (error.path == path and isinstance(error, NodeExists)):
                    raise
            missing = [above for above in ancestors(path) if await self.exists(above) is None]

    async def set(self, path: str, data: bytes, version: int = ANY) -> int:
        """Replace a node's data if it has this version; answers its new version."""
        return (await self.multi([Set(path, data, version)]))[0]

    async def delete(self, path: str, version: int = ANY) -> None:
        """Delete a node that has no children, if it has this version."""
        await self.multi([Delete(path, version)])

    async def exists(self, path: str) -> int | None:
        """The node's version, or None if there is no such node."""
        try:
            return (await self.get(path)).version
        except NoNode:
            return None
