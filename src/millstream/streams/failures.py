"""What went wrong in Spark, in a few lines for people.

Spark wraps an error in its query, its stage, its task and its worker, each with a trace. What helps is at the
bottom: the last line of a Python trace and where in the user's own file it was raised, or the root cause's
message without its error class.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.streams.problems import StreamsError

_LIBRARIES = (
    *("/pyspark/", "/py4j/", "/pyspark.zip/", "/site-packages/", "/lib/python3", "<frozen"),
    *("/millstream/streams/", "/millstream/client/", "/millstream/net/", "/millstream.zip/"),
)
_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_RAISED = re.compile(r"^([\w.]+\.)?(\w+)(?:: (.*))?$")
_PLAIN = ("millstream.", "pyspark.errors.")
"""Where errors come from whose message says it all."""
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$')
_CHANGED = re.compile(
    r"sources in the checkpoint offsets|OPERATOR_NOT_MATCH_IN_STATE|SCHEMA_(NOT_COMP|INCOMP)ATIBLE|"
    r"INVALID_(VARIABLE_TYPE_CHANGE|VALUE_SCHEMA_EVOLUTION)"
)
_MOST = 600
_PASSES = "Python worker failed to connect back"
TRIES = 5
"""How often a query is started again after an error that passes."""


def passes(error: object) -> bool:
    """Whether an error is over when the query starts again from its checkpoint: Spark gives a Python process
    ten seconds to start, which on a busy machine may be too little."""
    return _PASSES in str(error)


@contextmanager
def explained(log: Path | None = None) -> Iterator[None]:
    """Errors of Spark within the block leave it as a StreamsError."""
    try:
        yield
    except _errors_of_spark() as error:
        raise StreamsError(explain(str(error), log, _raised_at(error))) from None


def _errors_of_spark() -> tuple[type[BaseException], ...]:
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException
    except ImportError:  # without Spark there are none, and who needs it says so
        return ()
    return PySparkException, Py4JError


def explain(text: str, log: Path | None = None, raised_at: str | None = None) -> str:
    """A few lines out of Spark's message; the log file, if there is one, has the rest."""
    body = text.split("=== Streaming Query ===")[0].split("\nDriver stacktrace")[0].split("JVM stacktrace")[0]
    said = _of_python(body) or _of_spark(body)
    lines = [said if len(said) <= _MOST else said[: _MOST - 1] + "…"]
    if (where := _own_frame(body) or raised_at) is not None:
        lines.append(f"  at {where}")
    if _CHANGED.search(text):
        lines.append("  the app does not fit its checkpoint any more: reset it, or give it another name")
    if log is not None and log.exists():
        lines.append(f"  more in {log}")
    return "\n".join(lines)


def _of_python(body: str) -> str | None:
    """The last line of the last Python trace: the error itself."""
    if "Traceback (most recent call last)" not in body:
        return None
    trace = body.rsplit("Traceback (most recent call last)", 1)[1].splitlines()[1:]
    for number, line in enumerate(trace):
        if line[:1] not in ("", " ", "\t", "^") and (found := _RAISED.match(line)):
            rest = [each for each in trace[number + 1 :] if each.strip() and not each.startswith("\tat ")]
            message = " ".join([found[3] or "", *(each.strip() for each in rest[:3])])
            said = _STATE.sub("", _CLASS.sub("", message)).strip()
            if not said:
                return found[2]
            return said if (found[1] or "").startswith(_PLAIN) else f"{found[2]}: {said}"
    return None


def _of_spark(body: str) -> str:
    """The innermost message, without what wraps it."""
    said = body.rsplit("terminated with exception: ", 1)[-1]
    if (found := re.search(r"Lost task .*?\): [\w.$]+: (.*)", said, re.DOTALL)) is not None:
        said = found[1]
    lines = [line.strip() for line in said.splitlines()]
    kept = [line for line in lines if line and not line.startswith(("at ", "+-", "'", ":-", "==", "~"))]
    return _STATE.sub("", _CLASS.sub("", " ".join(kept[:3]))).strip().rstrip(";") or "Spark gave no reason"


def _own_frame(body: str) -> str | None:
    frames = [found for line in body.splitlines() if (found := _FRAME.match(line))]
    own = [each for each in frames if not any(part in each[1] for part in _LIBRARIES)]
    return f"{own[-1][1]}:{own[-1][2]} in {own[-1][3]}" if own else None


def _raised_at(error: BaseException) -> str | None:
    """Where the user's own file called Spark."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not any(part in each.filename for part in _LIBRARIES)]
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else None
