"""Many seeds of a simulation, on all cores, and what they came to."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from tests.simulation.one_broker import Outcome

T = TypeVar("T")


def all_cores() -> ProcessPoolExecutor:
    """A process for each core, which takes only what tests beside it leave: they have deadlines to meet."""
    return ProcessPoolExecutor(os.cpu_count(), initializer=_begin)


def _begin() -> None:
    os.nice(19)
    # Those of the test that forked this process would keep each message, and all that an error holds.
    logging.getLogger().handlers.clear()


def run_seeds(simulate: Callable[[int], T], seeds: Iterable[int]) -> list[T]:
    with all_cores() as executor:
        return list(executor.map(simulate, seeds))


def failures(outcomes: Iterable[Outcome], scenario: str) -> str:
    """What went wrong in each seed that failed, and how it is seen again; empty if all passed."""
    return "\n".join(
        f"seed {outcome.seed}: {'; '.join(map(str, outcome.anomalies[:3]))}\n"
        f"  to see it again: python -m tests.simulation {scenario} --seed {outcome.seed} --trace"
        for outcome in outcomes
        if not outcome.is_good
    )


def totals(outcomes: Iterable[Outcome]) -> tuple[Counter[str], Counter[str]]:
    """What happened in all seeds together: counts and faults."""
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        counts += outcome.counts
        faults += outcome.faults
    return counts, faults


def seeds_needed(
    until_caught: Callable[[str, int], int], mutations: Collection[str], most: int
) -> dict[str, int]:
    """How many seeds it takes to see that a broker is broken, for each way to break it."""
    with all_cores() as executor:
        needed = executor.map(until_caught, mutations, [most] * len(mutations))
        return dict(zip(mutations, needed, strict=True))


def trace_hashes(program: str) -> set[str]:
    """What a program prints, run twice, in processes whose strings hash differently."""
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
