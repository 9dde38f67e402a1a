"""Subscription: which topics an app reads, from where on, and how."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millstream.streams.problems import StreamsError
from millstream.streams.sink_names import is_decisions

Topics = str | Iterable[str] | re.Pattern[str]

FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x"}
"""Flags that make a difference to names of topics, as they stand in a pattern's text."""


@dataclass(frozen=True)
class Subscription:
    """Topics by name or by pattern. `options` go to the source as they are."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    start: str = "earliest"
    is_committed: bool = True
    has_headers: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How it is called in messages and in the state folder."""
        return self.pattern if self.pattern is not None else ",".join(self.topics)

    @property
    def choice(self) -> dict[str, str]:
        """The source's option that names the topics."""
        if self.pattern is not None:
            return {"subscribePattern": self.pattern}
        return {"subscribe": ",".join(self.topics)}

    def takes(self, topic: str) -> bool:
        """Whether a topic is one of these."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None and not is_decisions(topic)
        return topic in self.topics


def subscription(
    topics: Topics,
    start: str,
    *,
    is_committed: bool,
    has_headers: bool,
    options: Mapping[str, str] | None,
) -> Subscription:
    """The subscription that `stream` and `table` were asked for."""
    given = dict(options or {})
    if isinstance(topics, re.Pattern):
        return Subscription((), _text_of(topics), start, is_committed, has_headers, given)
    listed = (topics,) if isinstance(topics, str) else tuple(topics)
    if not listed or not all(listed):
        raise StreamsError("no topic is named: stream() takes a name, several, or a compiled pattern")
    return Subscription(listed, None, start, is_committed, has_headers, given)


def _text_of(pattern: re.Pattern[str]) -> str:
    """A pattern as the source takes it: flags that it was compiled with stand in front."""
    added = pattern.flags & ~re.compile(pattern.pattern).flags
    letters = "".join(letter for flag, letter in FLAGS.items() if added & flag)
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern
