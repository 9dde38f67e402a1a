"""The names under which a query's writes are known to the cluster.

A query's decisions lie in a topic of its own and are written under a transactional id of its own. Every
attempt of a task has a transactional id too, made of query, run, partition and attempt. The run stands in
it so that a task which a dead driver left behind can never take the id, and so abort the transaction, of a
task of the next run. The ids of a run are used again in each of its batches; those of old runs expire in
the cluster by themselves (`transactional.id.expiration.ms`, 7 days).
"""

from __future__ import annotations

import re
from typing import NamedTuple
from uuid import UUID

PREFIX = "millstream-sink-"
RUN_LETTERS = 8
_ATTEMPT = re.compile(rf"[^-]{{{RUN_LETTERS}}}-\d+-\d+")
"""Run, partition and attempt, behind the prefix of a query."""


class Run(NamedTuple):
    """One start of one query; `query` stays the same over restarts."""

    query: str
    run: str

    @property
    def prefix(self) -> str:
        """What the transactional ids of this run begin with."""
        letters = self.run.replace("-", "")[:RUN_LETTERS].ljust(RUN_LETTERS, "0")
        return f"{prefix_of(self.query)}{letters}-"

    @property
    def is_one_start(self) -> bool:
        """Whether no other start has this name: Spark's own are UUIDs, what a user named need not be one."""
        try:
            UUID(self.run)
        except ValueError:
            return False
        return True

    def transactional_id(self, partition: int, attempt: int) -> str:
        return f"{self.prefix}{partition}-{attempt}"


def prefix_of(query: str) -> str:
    """What the transactional ids of all attempts of a query begin with."""
    return f"{PREFIX}{query}-"


def is_attempt_of(query: str, transactional_id: str) -> bool:
    """Whether an id is that of an attempt of this query, and not of one whose name only begins the same."""
    prefix = prefix_of(query)
    return (
        transactional_id.startswith(prefix) and _ATTEMPT.fullmatch(transactional_id, len(prefix)) is not None
    )


def owner_of(query: str) -> str:
    """The transactional id of a query's decisions; a driver that takes it has the query."""
    return f"{PREFIX}{query}"


def topic_of(query: str) -> str:
    """The topic of a query's decisions."""
    return f"__{PREFIX}{query}"


def is_decisions(topic: str) -> bool:
    """Whether a topic holds decisions: no pattern of a reader means those."""
    return topic.startswith(topic_of(""))
