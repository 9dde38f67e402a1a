"""Transactions and groups on one broker under faults, many seeds: whole or not at all, each once.

Guards the rules of coordinators: what is answered is committed, ends of transactions reach every partition,
old epochs do nothing, and committed positions outlive every death.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.coordinator_mutations import MUTATIONS, seeds_until_caught
from tests.simulation.exactly_once import DURATION_S, simulate_exactly_once
from tests.simulation.one_broker import Outcome
from tests.simulation.seeds import failures, run_seeds, seeds_needed, totals, trace_hashes

pytestmark = pytest.mark.timeout(1800)

SEEDS = range(int(os.environ.get("MILLSTREAM_SEEDS", "12")))
MUTATION_SEEDS = 40


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return run_seeds(simulate_exactly_once, SEEDS)


def test_seeds_pass(outcomes: list[Outcome]) -> None:
    assert not failures(outcomes, "exactly-once")


def test_each_seed_tests_something(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert outcome.virtual_s >= DURATION_S, outcome.seed
        assert outcome.faults.total() >= 5, outcome.seed
        for name, least in (
            ("acks", 500),
            ("committed", 100),
            ("aborted", 20),
            ("outputs", 200),
            ("offset_commits", 20),
            ("generations", 5),
            ("holdings", 5),
        ):
            assert outcome.counts[name] >= least, (outcome.seed, name)


def test_together_they_test_everything(outcomes: list[Outcome]) -> None:
    """A simulation that stopped testing is seen."""
    counts, _ = totals(outcomes)
    for name in (
        "asked",
        "open",
        "fenced",
        "unanswered",
        "power_losses",
        "client crashes",
        "client zombies",
        "late_markers",
        "offset_reads",
        "reads",
    ):
        assert counts[name] > 0, name


@pytest.fixture(scope="module")
def needed() -> dict[str, int]:
    return seeds_needed(seeds_until_caught, MUTATIONS, MUTATION_SEEDS)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_broken_broker_is_caught(mutation: str, needed: dict[str, int]) -> None:
    assert needed[mutation] <= MUTATION_SEEDS


def test_equal_seed_equal_trace() -> None:
    """Twice, in processes whose strings hash differently."""
    program = (
        "from tests.simulation.exactly_once import simulate_exactly_once as run;"
        "print(run(3, duration_s=20.0).trace_hash)"
    )
    assert len(trace_hashes(program)) == 1
