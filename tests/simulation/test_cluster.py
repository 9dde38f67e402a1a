"""A cluster under faults, many seeds: nothing acknowledged is lost, doubled or reordered, and it heals.

Guards the rules of replication and of coordinators that move: what is acknowledged with acks=all outlives
every fault that the durability table allows, replicas are byte-equal, transactions are whole.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.cluster import DURATION_S, LEAST_ACKS, simulate_cluster
from tests.simulation.cluster_mutations import (
    MUTATIONS,
    acknowledge_before_replication,
    seeds_until_caught,
)
from tests.simulation.one_broker import Outcome
from tests.simulation.seeds import failures, run_seeds, seeds_needed, totals, trace_hashes

pytestmark = pytest.mark.timeout(1800)

SEEDS = range(int(os.environ.get("MILLSTREAM_CLUSTER_SEEDS", "100")))
MUTATION_SEEDS = 200


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return run_seeds(simulate_cluster, SEEDS)


def test_seeds_pass(outcomes: list[Outcome]) -> None:
    assert not failures(outcomes, "cluster")


def test_each_seed_tests_something(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert outcome.virtual_s >= DURATION_S, outcome.seed
        assert outcome.faults.total() >= 5, outcome.seed
        assert outcome.counts["acks"] >= LEAST_ACKS, outcome.seed
    assert sum(outcome.counts["acks"] for outcome in outcomes) >= 1.5 * LEAST_ACKS * len(outcomes)


def test_together_they_test_everything(outcomes: list[Outcome]) -> None:
    """A simulation that stopped testing is seen."""
    counts, faults = totals(outcomes)
    for name in (
        "elections",
        "truncations",
        "isr_shrinks",
        "isr_changes",
        "sessions_lost",
        "brokers parted with",
        "offices given up",
        "fenced",
        "fences: FencedLeaderEpoch",
        "fences: StaleBrokerEpoch",
        "distant brokers",
        "aborted",
        "committed",
        "asked",
        "client crashes",
        "client zombies",
        "offset_commits",
        "outputs",
        "moves begun",
        "moves taken back",
        "preferred elections",
        "min ISRs set",
        "topics made",
        "topics deleted",
        "topics churned",
        "hurried moves",
        "cluster trims",
        "cluster resets",
        "starts compared",
        "starts moved",
        "starts by size",
        "trimmed acks",
        "trimmed aborts",
        "unclean acks",
        "unclean losses",
        "diverged consumers",
        "compactions of offsets",
        "compactions of transactions",
        "table acks",
        "tables",
        "ends told",
        "reads anywhere",
    ):
        assert counts[name] > 0, name
    for name in (
        "kill",
        "kill all",
        "kill beside a cut",
        "kill inside a disk call",
        "power loss",
        "power loss of all",
        "power loss unheard",
        "clean restart",
        "pause",
        "cut off",
        "cut off from clients",
        "part two",
        "split",
        "cut off from the registry",
        "lose connections",
        "lose session",
        "delay",
        "slow disk",
        "full disk",
        "failing reads",
        "failed fsync",
        "damaged records",
        "clock jump",
        "lose disk",
        "lose disk unheard",
    ):
        assert faults[name] > 0, name


@pytest.fixture(scope="module")
def needed() -> dict[str, int]:
    return seeds_needed(seeds_until_caught, MUTATIONS, MUTATION_SEEDS)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_broken_cluster_is_caught(mutation: str, needed: dict[str, int]) -> None:
    assert needed[mutation] <= MUTATION_SEEDS


def test_a_replica_that_lacks_what_is_committed_is_seen() -> None:
    """Also where nobody reads there before it is made good again."""
    with acknowledge_before_replication():
        outcome = simulate_cluster(1, duration_s=3.0)
    assert any("lacks committed records" in anomaly.text for anomaly in outcome.anomalies)


def test_equal_seed_equal_trace() -> None:
    """Twice, in processes whose strings hash differently."""
    program = (
        "from tests.simulation.cluster import simulate_cluster as run;"
        "print(run(3, duration_s=15.0).trace_hash)"
    )
    assert len(trace_hashes(program)) == 1
