"""Faults put into the broker on purpose, to show that the checks can fail.

Each is a context in which the broker breaks one promise. A simulation that does not notice within a
bounded number of seeds has stopped testing that promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from millstream.cluster.partition import Partition
from millstream.storage import recovery, snapshots
from millstream.storage.flusher import Flusher
from millstream.storage.log import Log
from millstream.storage.producer_snapshot import encode_snapshot
from millstream.storage.producer_state import Producer, ProducerState
from millstream.storage.reading import Slice
from millstream.storage.segment import Segment
from millstream.storage.snapshots import Snapshots
from tests.simulation.disk import SimDisk, SimFile
from tests.simulation.files import Inode

MUTATION_S = 30.0
"""How long a broken broker runs with each seed."""

Mutation = Callable[[], AbstractContextManager[None]]


@contextmanager
def acknowledge_before_writing() -> Iterator[None]:
    """The last write to each file waits in the process: a kill loses it."""
    real_append, real_crash = SimFile.append, SimDisk.crash
    sizes: dict[Inode, int] = {}

    def append(self: SimFile, data: Any) -> None:
        sizes[self._inode] = len(self._inode.data)
        real_append(self, data)

    def crash(self: SimDisk) -> None:
        for inode, size in sizes.items():
            inode.truncate(min(size, len(inode.data)), 0)
        sizes.clear()
        real_crash(self)

    with patch.object(SimFile, "append", append), patch.object(SimDisk, "crash", crash):
        yield


def acknowledge_before_fsync() -> AbstractContextManager[Any]:
    """A flush says that records are durable without an fsync."""
    return patch.object(Segment, "fsync", lambda self, **_: None)


def forget_the_folder() -> AbstractContextManager[Any]:
    """A flush makes bytes durable, but not the names that lead to them."""
    return patch.object(Flusher, "_sync_names", lambda self, *_, **__: None)


@contextmanager
def ignore_failed_fsync() -> Iterator[None]:
    """An fsync that failed counts as one that did not."""
    real = Segment.fsync

    def fsync(self: Segment, **options: Any) -> None:
        try:
            real(self, **options)
        except OSError:
            pass

    with patch.object(Segment, "fsync", fsync):
        yield


def stop_without_flushing() -> AbstractContextManager[Any]:
    """A clean stop says that all was written down, and wrote nothing down."""
    return patch.object(Log, "_write_down", lambda self: None)


@contextmanager
def trust_torn_bytes() -> Iterator[None]:
    """Recovery believes what a batch says of itself, without its checksum."""
    real = recovery.good_chunks

    def good_chunks(segment: Segment, position: int, next_offset: int, **_: Any) -> Any:
        return real(segment, position, next_offset, verify_crc=False)

    with patch.object(recovery, "good_chunks", good_chunks):
        yield


def ignore_sequences() -> AbstractContextManager[Any]:
    """A batch that was sent before is written again."""
    return patch.object(ProducerState, "check", lambda self, header: None)


def forget_producers() -> AbstractContextManager[Any]:
    """A restart forgets what the producers have written."""

    def load(self: Snapshots, end_offset: int, first_offset: int) -> ProducerState:
        return ProducerState(end_offset)

    return patch.object(Snapshots, "load", load)


@contextmanager
def remember_one_batch() -> Iterator[None]:
    """A snapshot holds only the latest batch of each producer, though five may be sent again."""
    real = encode_snapshot

    def encode(producers: Any) -> bytes:
        kept = []
        for producer in producers:
            copy = Producer(producer.producer_id, producer.epoch, producer.last_timestamp)
            copy.batches = producer.batches[-1:]
            kept.append(copy)
        return real(kept)

    with patch.object(snapshots, "encode_snapshot", encode):
        yield


def show_what_is_not_durable() -> AbstractContextManager[Any]:
    """Consumers see records that a power loss may still take."""

    def read(
        self: Partition, offset: int, max_bytes: int, *, is_committed_only: bool, min_one: bool, nowait: bool
    ) -> Slice:
        return self.log.read(offset, max_bytes, limit=self.log.end_offset, min_one=min_one, nowait=nowait)

    return patch.object(Partition, "read", read)


FLUSHED = {"flush.before.ack": "true"}
ROLLING = {"flush.before.ack": "true", "internal.segment.bytes": "10000"}

MUTATIONS: dict[str, tuple[Mutation, str, dict[str, str]]] = {
    mutation.__name__: (mutation, favourite, configs)
    for mutation, favourite, configs in (
        (acknowledge_before_writing, "kill", {}),
        (acknowledge_before_fsync, "power_loss", FLUSHED),
        (forget_the_folder, "power_loss", FLUSHED),
        (ignore_failed_fsync, "failed_fsync", FLUSHED),
        (stop_without_flushing, "clean_stop_then_power_loss", {}),
        (trust_torn_bytes, "power_loss", {}),
        (ignore_sequences, "lose_connections", {}),
        (forget_producers, "kill_before_answers_arrive", ROLLING),
        (remember_one_batch, "kill_before_answers_arrive", ROLLING),
        (show_what_is_not_durable, "failed_fsync", FLUSHED),
    )
}
"""Each with the fault and the configuration of the topic that bring it to light soonest."""


def seeds_until_caught(name: str, limit: int) -> int:
    """How many seeds it takes to notice a mutation; `limit` + 1 if that many do not."""
    from tests.simulation.one_broker import simulate

    mutation, favourite, configs = MUTATIONS[name]
    with mutation():
        for seed in range(limit):
            outcome = simulate(seed, duration_s=MUTATION_S, favourite=favourite, configs=configs)
            if not outcome.is_good:
                return seed + 1
    return limit + 1
