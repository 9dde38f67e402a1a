"""Transactions and groups on one broker under faults, many seeds: whole or not at all, each once.

Guards the rules of coordinators: what is answered is committed, ends of transactions reach every partition,
old epochs do nothing, and committed positions outlive every death.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.simulation.coordinator_mutations import MUTATIONS, seeds_until_caught
from tests.simulation.exactly_once import DURATION_S, simulate_exactly_once
from tests.simulation.one_broker import Outcome

pytestmark = pytest.mark.timeout(900)

SEEDS = range(int(os.environ.get("MILLSTREAM_SEEDS", "12")))
MUTATION_SEEDS = 40


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    with ProcessPoolExecutor(os.cpu_count()) as executor:
        return list(executor.map(simulate_exactly_once, SEEDS))


def test_seeds_pass(outcomes: list[Outcome]) -> None:
    failed = [
        f"seed {outcome.seed}: {'; '.join(map(str, outcome.anomalies[:3]))}\n"
        f"  to see it again: python -m tests.simulation exactly-once --seed {outcome.seed} --trace"
        for outcome in outcomes
        if not outcome.is_good
    ]
    assert not failed, "\n".join(failed)


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
    counts: Counter[str] = sum((outcome.counts for outcome in outcomes), Counter())
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
def seeds_needed() -> dict[str, int]:
    with ProcessPoolExecutor(os.cpu_count()) as executor:
        needed = executor.map(seeds_until_caught, MUTATIONS, [MUTATION_SEEDS] * len(MUTATIONS))
        return dict(zip(MUTATIONS, needed, strict=True))


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_broken_broker_is_caught(mutation: str, seeds_needed: dict[str, int]) -> None:
    assert seeds_needed[mutation] <= MUTATION_SEEDS


def test_equal_seed_equal_trace() -> None:
    """Twice, in processes whose strings hash differently."""
    program = (
        "from tests.simulation.exactly_once import simulate_exactly_once as run;"
        "print(run(3, duration_s=20.0).trace_hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(hashes) == 1
