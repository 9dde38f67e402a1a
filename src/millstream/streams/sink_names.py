"""The names under which a query's writes are known to the cluster.

A query's decisions lie in a topic of its own and are written under a transactional id of its own. Every
attempt of a task has a transactional id too, made of query, run, partition and attempt. The run stands in
it so that a task which a dead driver left behind can never take the id, and so abort the transaction, of a
task of the next run. The ids of a run are used again in each of its batches; those of old runs expire in
the cluster by themselves (`transactional.id.expiration.ms`, 7 days).
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "millstream-sink-"
RUN_LETTERS = 8


class Run(NamedTuple):
    """One start of one query; `query` stays the same over restarts."""

    query: str
    run: str

    @property
    def prefix(self) -> str:
        """What the transactional ids of this run begin with."""
        return f"{prefix_of(self.query)}{self.run[:RUN_LETTERS]}-"

    def transactional_id(self, partition: int, attempt: int) -> str:
        return f"{self.prefix}{partition}-{attempt}"


def prefix_of(query: str) -> str:
    """What the transactional ids of all attempts of a query begin with."""
    return f"{PREFIX}{query}-"


def owner_of(query: str) -> str:
    """The transactional id of a query's decisions; a driver that takes it has the query."""
    return f"{PREFIX}{query}"


def topic_of(query: str) -> str:
    """The topic of a query's decisions."""
    return f"__{PREFIX}{query}"
