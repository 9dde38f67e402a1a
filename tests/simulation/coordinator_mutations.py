"""Faults put into coordinators and transactions on purpose, to show that the checks can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from millstream.broker.coordinators import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from millstream.cluster.flushing import Flushing
from millstream.cluster.partition import Partition
from millstream.coordinator.runtime import Runtime
from millstream.coordinator.shard import Producer
from millstream.coordinator.transactions.shard import TransactionShard
from millstream.storage.producer_state import ProducerState

MUTATION_S = 30.0
SLOWNESS = 20.0
"""How slow the disk is, so that what is not flushed yet is more than on a fast one."""


def acknowledge_end_before_prepared() -> AbstractContextManager[Any]:
    """EndTxn is answered before the decision is durable."""
    real = Runtime._answer

    async def answer(self: Runtime[Any], host: Any, committed: Any, response: Any) -> Any:
        return await real(self, host, None if self.name == TRANSACTIONS_TOPIC else committed, response)

    return patch.object(Runtime, "_answer", answer)


def acknowledge_offsets_before_committed() -> AbstractContextManager[Any]:
    """A commit of offsets is answered before it is durable."""
    real = Flushing.configure

    def configure(self: Flushing) -> None:
        real(self)
        if self._log.partition.topic == GROUPS_TOPIC:
            self.comes_first = False

    return patch.object(Flushing, "configure", configure)


def ignore_epochs_of_markers() -> AbstractContextManager[Any]:
    """A marker that comes late ends what its producer has begun since."""
    return patch.object(ProducerState, "check_marker", lambda self, *_: None)


def serve_beyond_last_stable() -> AbstractContextManager[Any]:
    """Readers of committed records get those of open transactions."""
    return patch.object(Partition, "last_stable_offset", property(lambda self: self.high_watermark))


@contextmanager
def let_zombies_go_on() -> Iterator[None]:
    """The coordinator takes an old epoch of a producer for the one it has now."""
    owned, end = TransactionShard._owned, TransactionShard.end

    def current(shard: TransactionShard, transactional_id: str, producer: Producer) -> Producer:
        found = shard.get(transactional_id)
        return producer if found is None else Producer(producer.producer_id, found.epoch)

    def owned_by_any(self: TransactionShard, transactional_id: str, producer: Producer) -> Any:
        return owned(self, transactional_id, current(self, transactional_id, producer))

    def end_by_any(self: TransactionShard, transactional_id: str, producer: Producer, *args: Any) -> Any:
        return end(self, transactional_id, current(self, transactional_id, producer), *args)

    with (
        patch.object(TransactionShard, "_owned", owned_by_any),
        patch.object(TransactionShard, "end", end_by_any),
    ):
        yield


Mutation = Callable[[], AbstractContextManager[Any]]

MUTATIONS: dict[str, tuple[Mutation, str]] = {
    mutation.__name__: (mutation, favourite)
    for mutation, favourite in (
        (acknowledge_end_before_prepared, "power_loss"),
        (acknowledge_offsets_before_committed, "power_loss"),
        (ignore_epochs_of_markers, "lose_connections"),
        (serve_beyond_last_stable, "lose_connections"),
        (let_zombies_go_on, "lose_connections"),
    )
}
"""Each with the fault that brings it to light soonest."""


def seeds_until_caught(name: str, limit: int) -> int:
    """How many seeds it takes to notice a mutation; `limit` + 1 if that many do not."""
    from tests.simulation.exactly_once import simulate_exactly_once

    mutation, favourite = MUTATIONS[name]
    with mutation():
        for seed in range(limit):
            outcome = simulate_exactly_once(
                seed, duration_s=MUTATION_S, favourite=favourite, is_flushed=True, slowness=SLOWNESS
            )
            if not outcome.is_good:
                return seed + 1
    return limit + 1
