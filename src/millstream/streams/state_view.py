"""What stateful operators of an app hold, read from its checkpoints by Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.streams.change_processor import BUCKET
from millstream.streams.failures import explained
from millstream.streams.problems import StreamsError
from millstream.streams.state_folder import spark_path

if TYPE_CHECKING:
    from millstream.streams.app import App


@dataclass(frozen=True)
class Store:
    """One store of one operator."""

    checkpoint: Path
    operator: int
    name: str
    store: str
    variable: str | None

    @property
    def part(self) -> str | None:
        """Which of the operator's states, where it may have several."""
        return self.variable or (None if self.store == "default" else self.store)

    @property
    def label(self) -> str:
        named = f" {self.part}" if self.part else ""
        return f"{self.operator} {self.name}{named} of {self.checkpoint.name}"


def stores(app: App) -> list[Store]:
    """The stores of all operators of all of an app's queries."""
    found: list[Store] = []
    for checkpoint in app.folder.checkpoints:
        if not (checkpoint / "state").is_dir() or not any((checkpoint / "commits").glob("[0-9]*")):
            continue
        with explained(app.folder.log):
            listed = app.spark.read.format("state-metadata").load(spark_path(checkpoint)).collect()
        for row in listed:
            where = (checkpoint, row["operatorId"], row["operatorName"], row["stateStoreName"])
            variables = _variables(row["operatorProperties"])
            found += [Store(*where, each) for each in variables] or [Store(*where, None)]
    return sorted(found, key=lambda each: (each.checkpoint, each.operator, each.store, each.variable or ""))


def rows(app: App, store: Store, limit: int) -> list[dict[str, Any]]:
    """Keys and values of a store, as plain values; the buckets of Millstream's own verbs are left out."""
    reader = app.spark.read.format("statestore").option("operatorId", store.operator)
    if store.variable is not None:
        reader = reader.option("stateVarName", store.variable)
    else:
        reader = reader.option("storeName", store.store)
    with explained(app.folder.log):
        held = reader.load(spark_path(store.checkpoint)).drop("partition_id").limit(limit)
        if held.select("key.*").columns == [BUCKET]:
            held = held.selectExpr("user_map_key AS key", "user_map_value AS value")
        found = held.selectExpr("to_json(struct(*)) AS text").collect()
    return [json.loads(each["text"]) for each in found]


def store_of(app: App, operator: int, variable: str | None, checkpoint: str | None) -> Store:
    """The store that was asked for, by its operator's number and, where that has several, its variable.

    The queries of an app number their operators each for itself: `checkpoint` says which query is meant.
    """
    known = stores(app)
    if not known:
        raise StreamsError(f"{app.name} holds no state in {app.folder.path}: it has not run, or needs none")
    fits = [
        each
        for each in known
        if each.operator == operator
        and variable in (None, each.part)
        and checkpoint in (None, each.checkpoint.name)
    ]
    if len(fits) != 1:
        how_many = "there are several such states" if fits else "there is no such state"
        raise StreamsError(f"{how_many}; there are: {'; '.join(each.label for each in fits or known)}")
    return fits[0]


def _variables(properties: str | None) -> list[str]:
    given = json.loads(properties) if properties else {}
    variables = given.get("stateVariables", [])
    names = [each["stateName"] if isinstance(each, dict) else str(each) for each in variables]
    return [name for name in names if not name.startswith("$")]
