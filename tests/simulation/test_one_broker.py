"""One broker under faults, many seeds: nothing acknowledged is lost, reordered or invented.

Guards the rules of durability: a killed process loses nothing; a power loss loses nothing that was
acknowledged with `flush.before.ack`, and else leaves a prefix of each log.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.mutations import MUTATIONS, seeds_until_caught
from tests.simulation.one_broker import DURATION_S, MIN_ACKS, Outcome, simulate
from tests.simulation.seeds import failures, run_seeds, seeds_needed, totals, trace_hashes

pytestmark = pytest.mark.timeout(1800)

SEEDS = range(int(os.environ.get("MILLSTREAM_SEEDS", "30")))
MUTATION_SEEDS = 30


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return run_seeds(simulate, SEEDS)


def test_seeds_pass(outcomes: list[Outcome]) -> None:
    assert not failures(outcomes, "one-broker")


def test_each_seed_tests_something(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert outcome.virtual_s >= DURATION_S, outcome.seed
        assert outcome.faults.total() >= 5, outcome.seed
        assert outcome.counts["acks"] >= MIN_ACKS, outcome.seed


def test_together_they_test_everything(outcomes: list[Outcome]) -> None:
    """A simulation that stopped testing is seen."""
    counts, faults = totals(outcomes)
    for name in ("reads", "fsyncs", "power_losses", "epoch_bumps", "excused", "topics", "trims", "final"):
        assert counts[name] > 0, name
    for name in (
        "kill",
        "kill inside a disk call",
        "kill again while recovering",
        "killed while starting",
        "kill before answers arrive",
        "power loss",
        "power loss soon after a kill",
        "power loss while recovering",
        "clean restart",
        "clean stop then power loss",
        "lose connections",
        "partition",
        "pause",
        "slow disk",
        "full disk",
        "failed fsync",
        "failing reads",
        "start without a log dir",
        "clock jump",
    ):
        assert faults[name] > 0, name


@pytest.fixture(scope="module")
def needed() -> dict[str, int]:
    return seeds_needed(seeds_until_caught, MUTATIONS, MUTATION_SEEDS)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_broken_broker_is_caught(mutation: str, needed: dict[str, int]) -> None:
    assert needed[mutation] <= MUTATION_SEEDS


def test_equal_seed_equal_trace() -> None:
    """Twice, in processes whose strings hash differently."""
    program = "from tests.simulation.one_broker import simulate; print(simulate(3).trace_hash)"
    assert len(trace_hashes(program)) == 1
