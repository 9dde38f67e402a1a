"""Resetting an app: it starts over from the beginning, and says what that leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import GroupIdNotFound, MillstreamError
from millstream.streams.problems import StreamsError
from millstream.streams.sink_reset import reset_sink
from millstream.streams.update_sink import sink_query

if TYPE_CHECKING:
    from millstream.streams.app import App


def reset(app: App) -> list[str]:
    """Forget where the app was: its checkpoints and state, its start, its group's offsets, and the sink's
    decisions and open transactions. Gives lines that say what was done and what is left.

    What the app wrote stays in its topics: it cannot be told from what others wrote there. It refuses while
    the app runs. One that ends half-way has to be done again before the app can run: without the decisions
    its last batch would be written once more.
    """
    folder = app.folder
    said: list[str] = []
    with folder.locked():
        ids = folder.query_ids()
        try:
            _forget_group(app)  # first, for it harms nothing: what cannot be reached is left as it is
            folder.begin_reset()
            for mode, query in ids.items():
                said += _reset_sink(app, sink_query(query, mode))
        except MillstreamError as error:
            raise StreamsError(f"{app.name} is not reset yet, do it again: {error}") from None
        folder.clear()
    if not ids:
        return [f"{app.name} has not run on {folder.path}: there is nothing to reset"]
    said.append(f"{app.name} starts over when it runs next")
    said.append("its output topics keep what it wrote: delete or empty them if it is not to be there twice")
    return said


def _reset_sink(app: App, query: str) -> list[str]:
    state = reset_sink(app.sink_bootstrap, query)
    said = []
    if state.last_batch is not None:
        finished = ", which was finished now" if state.was_finished else ""
        torn = ", which is torn: some of its rows were lost" if state.is_torn else ""
        said.append(f"the last batch in the output is {state.last_batch}{finished}{torn}")
    if state.aborted:
        said.append(f"aborted {state.aborted} open transactions")
    return said


def _forget_group(app: App) -> None:
    from millstream.client.admin_blocking import Admin

    with Admin(app.bootstrap) as admin:
        try:
            admin.delete_group(app.name)
        except GroupIdNotFound:
            pass
