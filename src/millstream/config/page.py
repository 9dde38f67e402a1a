"""The page that lists every key, made from the keys.

`python -m millstream.config.page > docs/configuration.md` writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.config.broker_keys import GROUPS
from millstream.config.keys import ConfigKey
from millstream.config.topic import TOPIC_KEYS

_INTRODUCTION = """\
# Configuration

<!-- Made by `python -m millstream.config.page > docs/configuration.md`; a test compares. -->

Keys have Kafka's names, defaults and limits; those that Kafka does not have are marked as ours. A broker
takes them from a `.properties` file (`millstream serve --config FILE`) and from options (`-o key=value`,
which win); a topic takes its own when it is created, or later (`millstream topic config`). An unknown key
or a bad value is refused with a hint.

A topic's value is the one set on the topic, else the broker's value of the key named under *broker key*,
else the default. A broker's value is the one set on that broker while it runs, else the one set on all
brokers while they run, else the one given at the start, else the default. *Scope* says where a broker's
key may be set while it runs: nowhere (`read-only`), on one broker (`per-broker`), or on one or on all
(`cluster-wide`). What is set so is kept, and holds at once; where it does not, the key says when.

`listener.name.LISTENER.max.connections`, with the listener's name in small letters, limits the connections of
one listener alone. Other keys cannot be given so, except those that have no effect anyway.

Keys marked *no effect* are accepted and listed, so that Kafka's files and tools work unchanged, and change
nothing.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _default(key: ConfigKey) -> str:
    text = key.render(key.default)
    if text is None:
        return "not set"
    return f"`{_cell(text)}`" if text else "empty"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _takes(key: ConfigKey) -> str:
    return key.kind if key.check is None else f"{key.kind}: {_cell(str(key.check))}"


def _about(key: ConfigKey) -> str:
    return f"{_cell(key.doc)} *No effect: {_cell(key.idle)}.*" if key.idle else _cell(key.doc)


def page() -> str:
    """The whole page, as Markdown."""
    lines = [_INTRODUCTION, "## Topics", ""]
    lines += [_row(("key", "default", "takes", "broker key", "what it does")), "|---|---|---|---|---|"]
    for key in TOPIC_KEYS.values():
        if not key.is_internal:
            synonyms = ", ".join(f"`{synonym.name}`" for synonym in key.synonyms)
            lines.append(_row((f"`{key.name}`", _default(key), _takes(key), synonyms, _about(key))))
    for title, keys in GROUPS.items():
        lines += ["", f"## Brokers: {title}", ""]
        lines += [_row(("key", "default", "takes", "scope", "what it does")), "|---|---|---|---|---|"]
        for key in sorted(keys, key=lambda key: key.name):
            if not key.is_internal:
                lines.append(_row((f"`{key.name}`", _default(key), _takes(key), key.scope, _about(key))))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
