"""Every state of a small cluster: no record that was committed is ever lost, and broken rules are seen.

Guards the rules of replication: the union of old and proposed ISR, broker epochs in proposals, truncation by
leader epochs, doubt in brokers whose last stop was not clean, and which of them leads if all are doubted.
"""

from __future__ import annotations

import pytest

from tests.model.exploration import explore
from tests.model.state import REPLICAS, Broker, Partition, State
from tests.model.steps import Model, Rules

pytestmark = pytest.mark.timeout(600)

KINDS = {"appends", "fetches", "cuts", "proposes", "controller,", "hears", "is", "loses", "session", "starts"}
"""Second words of what must have happened."""

RECORDS = ((0, 0),)
HOLDER = Broker(log=RECORDS)
ALL_COMMITTED = State(
    brokers=(HOLDER._replace(high_watermark=1), HOLDER, HOLDER), committed=RECORDS, faults_left=3
)
"""All replicas have the one record, and as many faults are to come as there are brokers."""


@pytest.mark.parametrize(
    ("min_isr", "records", "proposals", "faults", "least"),
    [(2, 1, 1, 1, 40_000), (2, 2, 0, 1, 5_000), (2, 1, 0, 2, 60_000), (1, 1, 1, 1, 20_000)],
)
def test_no_committed_record_is_lost(
    min_isr: int, records: int, proposals: int, faults: int, least: int
) -> None:
    first = State(records_left=records, proposals_left=proposals, faults_left=faults)
    explored = explore(Model(Rules(min_isr=min_isr)), first)
    assert explored.is_safe, "\n".join(explored.trace)
    assert explored.is_complete
    assert explored.states > least
    expected = set(KINDS)
    if not proposals:
        expected -= {"proposes", "controller,", "hears"}
    if min_isr == 1:
        expected -= {"loses"}
    assert expected <= set(explored.kinds)


def test_no_committed_record_is_lost_though_all_brokers_are_stopped() -> None:
    """One of them loses the end of its log, nobody knows which, and any of them may be stopped again."""
    explored = explore(Model(Rules()), ALL_COMMITTED)
    assert explored.is_safe, "\n".join(explored.trace)
    assert explored.is_complete
    assert explored.states > 200_000
    assert "are" in explored.kinds, "no ends were compared"


@pytest.mark.parametrize("hurt", [(), (0,), (1,), (2,)])
def test_no_committed_record_is_lost_though_all_brokers_stopped_at_once(hurt: tuple[int, ...]) -> None:
    """Nobody has left the ISR before the first of them comes back."""
    model = Model(Rules())
    brokers = tuple(
        Broker(is_up=False, is_registered=False, partition=None, log=() if number in hurt else RECORDS)
        for number in REPLICAS
    )
    first = State(
        brokers=brokers,
        partition=Partition(leader=-1, leader_epoch=1, version=1),
        committed=RECORDS,
        unclean=frozenset(REPLICAS),
        hurt=frozenset(hurt),
        proposals_left=1,
        faults_left=1,
    )
    explored = explore(model, first)
    assert explored.is_safe, "\n".join(explored.trace)
    assert explored.is_complete
    assert explored.states > 1_000
    assert "are" in explored.kinds, "no ends were compared"


def test_a_leader_of_those_in_doubt_that_is_not_the_longest_loses_a_record() -> None:
    explored = explore(Model(Rules(compares_ends=False)), ALL_COMMITTED)
    assert not explored.is_safe
    assert any("they tell their ends" in line for line in explored.trace), "\n".join(explored.trace)
    assert len(explored.trace) < 15


@pytest.mark.parametrize(
    ("records", "proposals", "faults", "least"), [(1, 0, 1, 20_000), (2, 1, 0, 20_000), (1, 2, 0, 20_000)]
)
def test_no_committed_record_is_lost_where_one_replica_is_damaged(
    records: int, proposals: int, faults: int, least: int
) -> None:
    first = State(records_left=records, proposals_left=proposals, faults_left=faults, damages_left=1)
    explored = explore(Model(Rules()), first)
    assert explored.is_safe, "\n".join(explored.trace)
    assert explored.is_complete
    assert explored.states > least
    assert {"meets", "tells", "mends"} <= set(explored.kinds)


def test_damage_that_is_cut_off_in_the_epoch_in_which_it_was_met_loses_a_record() -> None:
    """A leader counts on what the replica fetched before it was cut off."""
    first = State(records_left=1, proposals_left=2, damages_left=1)
    explored = explore(Model(Rules(mends_in_a_new_epoch=False)), first)
    assert not explored.is_safe
    assert any("mends damage" in line for line in explored.trace), "\n".join(explored.trace)


@pytest.mark.parametrize(
    ("broken", "records", "proposals", "faults", "telling"),
    [
        ("counts_union", 1, 1, 1, "proposes to go on without"),
        ("distrusts_unclean", 1, 0, 1, "starts again"),
        ("truncates_by_epoch", 2, 0, 2, "session of"),
        ("checks_broker_epochs", 1, 2, 1, "proposes to take"),
    ],
)
def test_a_broken_rule_loses_one(
    broken: str, records: int, proposals: int, faults: int, telling: str
) -> None:
    first = State(records_left=records, proposals_left=proposals, faults_left=faults)
    explored = explore(Model(Rules()._replace(**{broken: False})), first)
    assert not explored.is_safe
    assert any(telling in line for line in explored.trace), "\n".join(explored.trace)
    assert explored.trace[-1].startswith("broken: ")
    assert len(explored.trace) < 15
