"""Runs seeds of the simulation: `--seeds 100` for many, `--seed 7 --trace` for one of them again.

What to simulate comes first: `one-broker`, `exactly-once` or `cluster`, or nothing for all.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from typing import Any

HASH_SEED = "0"
KINDS = {
    "one-broker": "one_broker:simulate",
    "exactly-once": "exactly_once:simulate_exactly_once",
    "cluster": "cluster:simulate_cluster",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=KINDS, help="what to simulate (all)")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds to run (20)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--trace", action="store_true", help="print what happened, with --seed")
    parser.add_argument("--lines", type=int, default=4000, help="how many lines of the trace to keep (4000)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes to use")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # The order of sets of strings must not differ between a run and its replay.
        environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
        arguments = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, arguments, environment)
    status = 0
    for kind in [options.kind] if options.kind else KINDS:
        if options.seed is not None:
            status |= _replay(kind, options.seed, options.lines, options.trace)
        else:
            seeds = range(options.first, options.first + options.seeds)
            status |= _run_many(kind, seeds, options.jobs)
    return status


def _simulate(kind: str) -> Callable[..., Any]:
    module, _, function = KINDS[kind].partition(":")
    found: Callable[..., Any] = getattr(import_module(f"tests.simulation.{module}"), function)
    return found


def _replay(kind: str, seed: int, lines: int, wants_trace: bool) -> int:
    outcome = _simulate(kind)(seed, trace_lines=lines)
    if wants_trace:
        print("\n".join(outcome.trace))
    print(f"{kind}, seed {seed}: trace {outcome.trace_hash}, {outcome.virtual_s:.0f} virtual seconds")
    print(f"counts {dict(outcome.counts)}")
    print(f"faults {dict(outcome.faults)}")
    for anomaly in outcome.anomalies:
        print(f"  {anomaly}")
    return 0 if outcome.is_good else 1


def _run_many(kind: str, seeds: range, jobs: int) -> int:
    began = time.perf_counter()
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    failed: list[int] = []
    fewest_acks = 1 << 30
    with ProcessPoolExecutor(jobs) as executor:
        for outcome in executor.map(_simulate(kind), seeds):
            counts += outcome.counts
            faults += outcome.faults
            fewest_acks = min(fewest_acks, outcome.counts["acks"])
            if not outcome.is_good:
                failed.append(outcome.seed)
                print(f"{kind}: seed {outcome.seed} FAILED; to see it again:")
                print(f"  python -m tests.simulation {kind} --seed {outcome.seed} --trace")
                for anomaly in outcome.anomalies[:5]:
                    print(f"  {anomaly.kind}: {anomaly.text.strip().splitlines()[-1]}")
                sys.stdout.flush()
    print(
        f"{kind}: {len(seeds)} seeds in {time.perf_counter() - began:.1f} s, {len(failed)} failed: {failed}"
    )
    print(f"counts {dict(counts)}, at least {fewest_acks} acks in each")
    print(f"faults {dict(faults)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
