"""Explores the model: `--records 2 --proposals 1 --faults 1` says how far, `--without RULE` breaks a rule."""

from __future__ import annotations

import argparse
import sys
import time

from tests.model.exploration import explore
from tests.model.state import State
from tests.model.steps import Model, Rules


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--records", type=int, default=1, help="how many records are written (1)")
    parser.add_argument("--proposals", type=int, default=1, help="how often leaders propose an ISR (1)")
    parser.add_argument("--faults", type=int, default=1, help="how many faults befall brokers (1)")
    parser.add_argument("--damages", type=int, default=0, help="how many logs are damaged (0)")
    parser.add_argument("--min-isr", type=int, default=2, help="min.insync.replicas (2)")
    parser.add_argument("--max-states", type=int, default=20_000_000, help="when to give up (20,000,000)")
    rules = [name for name, value in Rules()._asdict().items() if value is True]
    parser.add_argument("--without", choices=rules, help="a rule to break")
    options = parser.parse_args()
    broken = {options.without: False} if options.without else {}
    model = Model(Rules(min_isr=options.min_isr)._replace(**broken))
    first = State(
        records_left=options.records,
        proposals_left=options.proposals,
        faults_left=options.faults,
        damages_left=options.damages,
    )
    began = time.perf_counter()
    explored = explore(model, first, max_states=options.max_states)
    seconds = time.perf_counter() - began
    print(f"{explored.states} states, {explored.steps} steps, {explored.deepest} deep, in {seconds:.1f} s")
    if not explored.is_complete:
        print("not all of them: give --max-states")
    print("\n".join(explored.trace) or "no promise is broken")
    return 0 if explored.is_safe else 1


if __name__ == "__main__":
    sys.exit(main())
