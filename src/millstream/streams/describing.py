"""What an app is and where it stands, as a document for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.streams.columns import of_value
from millstream.streams.queries import queries

if TYPE_CHECKING:
    from millstream.streams.app import App


def describe(app: App) -> dict[str, Any]:
    """What the app reads and writes, and how far it has come under its state folder."""
    outputs = app.outputs()
    found = queries(outputs, app.folder.query_ids())
    query_of = {id(each): mode for mode, those in found.items() for each in those}
    return {
        "app": app.name,
        "bootstrap": app.bootstrap,
        "state": str(app.folder.path),
        "reads": [
            {
                "topics": each.label,
                "start": each.start,
                "isolation": "read_committed" if each.is_committed else "read_uncommitted",
            }
            for each in app.last_read
        ],
        "writes": [
            {
                "topic": each.topic,
                "mode": each.mode,
                "checkpoint": app.folder.checkpoint(query_of[id(each)]).name,
                "columns": of_value(each.frame.columns),
            }
            for each in outputs
        ],
        "progress": progress(app),
    }


def progress(app: App) -> list[dict[str, Any]]:
    """The last batch of each query, and where it ends in each topic; empty before the first run."""
    found = []
    for path in app.folder.checkpoints:
        last = app.folder.progress(path)
        if last is not None:
            found.append({"checkpoint": path.name, "batch": last[0], "ends": last[1]})
    return found
