"""What a log needs of the world around it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from millstream.clock import Clock
from millstream.storage.disk import Disk
from millstream.storage.trash import Trash


def _nothing() -> None:
    """Where there is no log dir."""


def _ignore(_: OSError) -> None:
    """Nobody wants to know."""


class Surroundings(NamedTuple):
    """The same for all logs of a log dir."""

    disk: Disk
    clock: Clock
    random: Random
    trash: Trash
    sync_dir_names: Callable[[], None]
    """Makes the names of the logs' folders in the log dir durable."""
    on_failure: Callable[[OSError], None]
    """Told of an error after which nothing in this log dir can be trusted to be written."""
    save_recovery_points: Callable[[], None] = _nothing
    """Writes down how far each log of the log dir is durable."""
    on_no_room: Callable[[OSError], None] = _ignore
    """Told of a write that was refused for want of room."""
