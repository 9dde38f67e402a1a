"""Breadth first through all states of a model: the first broken promise comes with the shortest way to it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tests.model.state import State
from tests.model.steps import Model, Promise


@dataclass(slots=True)
class Explored:
    """What was seen. `trace` is the way to a broken promise, empty if there is none."""

    states: int = 0
    steps: int = 0
    deepest: int = 0
    is_complete: bool = True
    trace: list[str] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    """How often each kind of step was taken, by its second word."""

    @property
    def is_safe(self) -> bool:
        return not self.trace


def explore(model: Model, first: State, *, max_states: int = 10_000_000) -> Explored:
    """Visit every state that can be reached, each once.

    States that were seen are remembered by their hashes of 64 bits.
    """
    explored = Explored()
    came_from: dict[int, tuple[int, str]] = {hash(first): (0, "")}
    queue: deque[tuple[State, int]] = deque([(first, 0)])
    kinds = explored.kinds
    while queue:
        state, explored.deepest = queue.popleft()
        here = hash(state)
        try:
            for text, following in model.steps(state):
                explored.steps += 1
                kind = text.split(None, 2)[1]
                kinds[kind] = kinds.get(kind, 0) + 1
                there = hash(following)
                if there not in came_from:
                    came_from[there] = (here, text)
                    queue.append((following, explored.deepest + 1))
        except Promise as broken:
            explored.trace = [*_way(came_from, here), f"broken: {broken}"]
            break
        if len(came_from) > max_states:
            explored.is_complete = False
            break
    explored.states = len(came_from)
    return explored


def _way(came_from: dict[int, tuple[int, str]], here: int) -> list[str]:
    steps: list[str] = []
    while (before := came_from[here])[1]:
        here, text = before
        steps.append(text)
    return [f"{number:3}. {text}" for number, text in enumerate(reversed(steps), 1)]
