"""What stands for a log that is not there and may not be made anew, as it may come back with its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.storage.loading import create_log
from millstream.storage.surroundings import Surroundings
from millstream.storage.trash import Trash

if TYPE_CHECKING:
    from random import Random

    from millstream.clock import Clock
    from millstream.config.log import LogConfig
    from millstream.model import TopicPartition
    from millstream.storage.disk import Disk
    from millstream.storage.log import Log


def absent_log(
    disk: Disk,
    clock: Clock,
    random: Random,
    partition: TopicPartition,
    config: LogConfig,
    reason: str,
) -> Log:
    """An empty log in no log dir, which has failed for `reason`: it makes no file and takes no record."""
    around = Surroundings(disk, clock, random, Trash(disk, clock), _nothing, _ignore)
    made = create_log(around, f"/{partition}", partition, config)
    made.failure = reason
    return made


def _nothing() -> None:
    """There are no names to make durable."""


def _ignore(error: OSError) -> None:
    """There is no log dir that could fail."""
