"""Queries: which outputs of an app are written together, by one sink and under one decision for each batch.

All are, where that is possible: outputs that share a stream or a join then have the same rows of it, also
after a crash. Rows that replace earlier ones need Spark's update mode, in which all else is written as it is
in append mode but for aggregations (a window's row would come with each change of it) and what Spark refuses
there (outer joins of streams, session windows). An app that has both is two queries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from millstream.streams.outputs import Mode, Output, refusal
from millstream.streams.problems import StreamsError

if TYPE_CHECKING:
    from millstream.streams.state_folder import StateFolder

Queries = dict[Mode, list[Output]]
"""The outputs of each query, by the mode that it runs in."""

EMITTED_BY_MODE = ("Aggregate", "Distinct")
"""Spark's operators that give other rows in update mode than in append mode."""

WAYS_OUT = "reset it (millstream streams reset, or app.reset()), or give it another name"


def queries(outputs: Sequence[Output], ran: Collection[str] = ()) -> Queries:
    """An app's queries. `ran` are the modes of those that it has run as.

    One that began with a query in append mode goes on with it: its checkpoint knows what that has written.
    """
    found: Queries = {}
    for each in outputs:
        found.setdefault(each.mode, []).append(each)
    if len(found) > 1 and "append" not in ran and fit_update(outputs):
        return {"update": list(outputs)}
    return dict(sorted(found.items()))  # append starts first: see check_queries


def fit_update(outputs: Sequence[Output]) -> bool:
    """Whether one query in update mode writes of each output what its own mode would."""
    finals: list[Any] = [each.frame for each in outputs if each.mode == "append"]
    plans = [frame._jdf.queryExecution().analyzed() for frame in finals]
    if any(node.nodeName() in EMITTED_BY_MODE for plan in plans for node in _streaming(plan)):
        return False
    return refusal(records_of(outputs), "update") is None


def records_of(outputs: Sequence[Output]) -> DataFrame:
    """The records of outputs as one frame, with a topic column."""
    return reduce(DataFrame.unionByName, [each.records for each in outputs])


def as_before(wanted: Queries, folder: StateFolder, app: str) -> Queries:
    """An app's queries, their outputs in the order in which they ran before, whatever order `to` is said in.

    Spark finds the state of a step, and the offsets of a source, by its place in the query: outputs that
    change places would go on with each other's.
    """
    check_queries(wanted, folder, app)
    ran, known = folder.query_ids(), folder.outputs()
    return {
        mode: _in_order(those, known[mode], app) if mode in ran and mode in known else those
        for mode, those in wanted.items()
    }


def _in_order(outputs: list[Output], known: list[tuple[str, str]], app: str) -> list[Output]:
    """By topic, and among those to one topic by what else is known of them; what it says may have changed."""
    topics, now = [topic for topic, _ in known], [each.topic for each in outputs]
    if sorted(now) != sorted(topics):
        raise StreamsError(
            f"app {app} ran with outputs to {', '.join(topics)} and has outputs to {', '.join(now)} now, "
            f"which its checkpoint does not fit: {WAYS_OUT}"
        )
    left, found = list(outputs), list[Output]()
    for place in known:
        fits = [each for each in left if each.topic == place[0]]
        same = [each for each in fits if each.detail == place[1]]
        others = [each for each in fits if (each.topic, each.detail) not in known]
        found.append((same or others or fits)[0])
        left = [each for each in left if each is not found[-1]]
    return found


def check_queries(wanted: Queries, folder: StateFolder, app: str) -> None:
    """Refuse to run an output by another query than before: that would write all of it again from the
    beginning, or go on where the other query is.

    Outputs are of the query in append mode, if there is one, but for those that change. It starts before the
    other one, so that what an app ran as is known from its first start on, however that ended.
    """
    ran = folder.query_ids()
    if ran and ("append" in ran) != ("append" in wanted):
        raise StreamsError(
            f"app {app} ran in {_modes(ran)} mode and would run in {_modes(wanted)} mode now, which writes "
            f"outputs again from the beginning, or leaves rows out: {WAYS_OUT}"
        )


def _modes(given: Iterable[str]) -> str:
    return " and ".join(sorted(given))


def two_decisions(found: Queries) -> str | None:
    """What someone who runs the app should know, if it is two queries."""
    if len(found) == 1:
        return None
    finals, changing = (
        ", ".join(dict.fromkeys(each.topic for each in found[mode])) for mode in sorted(found)
    )
    how = (
        "it began so, and is one after a reset"
        if fit_update([*found["append"], *found["update"]])
        else "rows that are final and rows that change cannot be one here"
    )
    return f"two queries, each with its own batches and decisions: {finals} and {changing} ({how})"


def _streaming(plan: Any) -> Iterator[Any]:
    """The operators of a plan that see rows of a stream."""
    if not plan.isStreaming():
        return
    yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from _streaming(children.apply(number))
