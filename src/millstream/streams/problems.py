"""StreamsError: what an app cannot do, in words that say what to do instead."""

from __future__ import annotations

from millstream.errors import MillstreamError


class StreamsError(MillstreamError):
    """An app that cannot be built or run, or that failed: a few lines for people, no trace of a JVM."""
