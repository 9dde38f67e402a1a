"""The folder in which an app keeps where it is: checkpoints, where it started, its log, who runs it.

NAME/checkpoint-append/   Spark's checkpoint of a query whose rows are final
NAME/checkpoint-update/   and of one that also has rows which replace earlier ones
NAME/start.json           what `latest` was when the app first ran, by subscription and topic
NAME/outputs.json         each query's outputs, by its mode, in the order of their steps: topic, and a detail
NAME/resetting            there while a reset is not done: what is left fits nothing any more
NAME/millstream.zip       this package, where executors get it from here
NAME/lock                 locked while an app runs; it holds that program's process id
NAME/spark.log            what Spark had to say
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from millstream.client.offsets import EARLIEST, LATEST
from millstream.errors import MillstreamError
from millstream.streams.offsets import from_json, to_json
from millstream.streams.problems import StreamsError

if TYPE_CHECKING:
    from millstream.streams.subscription import Subscription

STATE_VARIABLE = "MILLSTREAM_STATE"
DEFAULT = "millstream-state"


class StateFolder:
    """An app's own folder under the state folder."""

    def __init__(self, root: str | Path | None, name: str) -> None:
        given = root or os.environ.get(STATE_VARIABLE) or DEFAULT
        if re.match(r"[A-Za-z][\w+.-]+:/", str(given)):
            raise StreamsError(
                f"state={given}: it is a folder of this machine, not an address; mount it as one, or use "
                "Spark's readStream and writeStream with a checkpointLocation of yours"
            )
        self.path = Path(given).absolute() / name
        self._fresh: dict[str, Any] = {}

    @property
    def log(self) -> Path:
        return self.path / "spark.log"

    def checkpoint(self, mode: str) -> Path:
        return self.path / f"checkpoint-{mode}"

    @property
    def checkpoints(self) -> list[Path]:
        return sorted(self.path.glob("checkpoint-*"))

    def query_ids(self) -> dict[str, str]:
        """The ids of the queries that have run here, by their mode."""
        found = {path.name.removeprefix("checkpoint-"): path / "metadata" for path in self.checkpoints}
        return {mode: json.loads(path.read_text())["id"] for mode, path in found.items() if path.exists()}

    def progress(self, checkpoint: Path) -> tuple[int, list[Any]] | None:
        """The last batch that was planned: its number, and where it ends in the topics of each source."""
        last = _last_logged(checkpoint / "offsets")
        if last is None:
            return None
        ends: list[Any] = []
        lines = (checkpoint / "offsets" / str(last)).read_text().splitlines()
        for line in dict.fromkeys(lines[2:]):  # behind Spark's version and settings; for each use of a source
            with suppress(ValueError):  # a source of another kind
                ends.append(to_json(from_json(line)))
        return last, ends

    def is_within_batch(self, mode: str) -> bool:
        """Whether a batch was begun that is not done: the sink may have something open."""
        path = self.checkpoint(mode)
        return _last_logged(path / "offsets") != _last_logged(path / "commits")

    def latest_once(self, bootstrap: str, wanted: Subscription) -> str:
        """Where the topics ended when the app first ran, or where they end now, as the source takes it.

        A source is asked for its first offsets more than once, and again after a restart: were `latest` to
        mean something else each time, records between would be lost. Partitions that came since are read from
        their beginning, and those that went are not named.
        """
        first = {**self._fresh, **self._starts()}.get(wanted.label)
        try:
            ends = _ends(bootstrap, wanted, is_patient=first is None)
        except MillstreamError:
            if first is None:
                raise
            return json.dumps(first, sort_keys=True)  # the source will say what is wrong
        if first is None:
            first = self._fresh[wanted.label] = ends
        start = {
            topic: {index: first.get(topic, {}).get(index, EARLIEST) for index in partitions}
            for topic, partitions in ends.items()
        }
        return json.dumps(start, sort_keys=True)

    def keep_starts(self) -> None:
        """Write down what `latest` is, now that the app runs: who only looks at an app does not settle it."""
        known = self._starts()
        if not self._fresh.keys() - known.keys():
            return
        self._write(self._start_file, {**self._fresh, **known})

    @property
    def _start_file(self) -> Path:
        return self.path / "start.json"

    def _starts(self) -> dict[str, Any]:
        return _read(self._start_file)

    @property
    def _outputs_file(self) -> Path:
        return self.path / "outputs.json"

    def outputs(self) -> dict[str, list[tuple[str, str]]]:
        """What each query wrote when it last started, by its mode: topics, and what tells those outputs apart
        that are to the same one."""
        kept = _read(self._outputs_file)
        return {
            mode: [(each, "") if isinstance(each, str) else (each[0], each[1]) for each in those]
            for mode, those in kept.items()
        }

    def keep_outputs(self, given: Mapping[str, list[tuple[str, str]]]) -> None:
        """Write down what the queries that start now write to; those that do not start keep theirs."""
        known = self.outputs()
        if known != (now := {**known, **given}):
            self._write(self._outputs_file, now)

    def _write(self, path: Path, document: Mapping[str, Any]) -> None:
        """Replace a file: whatever happens, it is the old one or the new one."""
        self.path.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        with fresh.open("w") as file:
            json.dump(document, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
        self._sync()

    def _sync(self) -> None:
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While an app runs; a second one on the same folder would write everything twice."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a+") as file:
            _lock(file, self.path)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    @property
    def _reset_file(self) -> Path:
        return self.path / "resetting"

    @property
    def is_half_reset(self) -> bool:
        """Whether a reset began and did not come to its end."""
        return self._reset_file.exists()

    def begin_reset(self) -> None:
        """From here on there is only the way to `clear`: the sink's decisions go before the checkpoints."""
        self._reset_file.touch()
        self._sync()

    def clear(self) -> None:
        """Forget where the app was. The log stays."""
        for path in self.checkpoints:
            shutil.rmtree(path)
        self._start_file.unlink(missing_ok=True)
        self._outputs_file.unlink(missing_ok=True)
        self._fresh.clear()
        self._sync()
        self._reset_file.unlink(missing_ok=True)


def spark_path(path: Path) -> str:
    """A folder as Spark takes it: its name as it is, for to Spark `%20` is no blank."""
    return f"file://{path}"


def _last_logged(folder: Path) -> int | None:
    """The number of the last batch that Spark has a file of in one of its logs."""
    return max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=None)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _lock(file: IO[str], path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        raise StreamsError(
            f"process {file.read().strip() or '?'} runs on {path} already: stop it, "
            "or give this app another name or state folder"
        ) from None


def _ends(bootstrap: str, wanted: Subscription, *, is_patient: bool) -> dict[str, dict[str, int]]:
    from millstream.client.admin_blocking import Admin
    from millstream.model import TopicPartition

    try:
        with Admin(bootstrap, must_answer_at_once=not is_patient) as admin:
            if wanted.pattern is not None:
                topics = [each for each in admin.list_topics() if wanted.takes(each)]
            else:
                topics = list(wanted.topics)
            asked = {
                TopicPartition(topic, index): LATEST
                for topic in topics
                for index in admin.describe_topic(topic).partitions
            }
            # Behind the end of what is committed a reader of that would find its place lost.
            found = admin.offsets_at(asked, only_committed=wanted.is_committed)
    except MillstreamError as error:
        raise StreamsError(
            f"start=latest: where {wanted.label} ends could not be asked at {bootstrap}: {error}"
        ) from None
    ends: dict[str, dict[str, int]] = {topic: {} for topic in topics}
    for partition, answer in found.items():
        ends[partition.topic][str(partition.partition)] = answer.offset
    return ends
