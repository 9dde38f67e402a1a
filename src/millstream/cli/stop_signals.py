"""How a broker's process is told to stop: by Ctrl-C or SIGTERM.

A stop hands partitions over and writes everything down, and whatever stops a broker may say so more than
once: systemd sends SIGTERM to each process of a unit, and the parent of several brokers passes its own on. So
a SIGTERM that comes again changes nothing. A second Ctrl-C does what it does to any program.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """Within, the event is set by the first signal; those that were held back so far come now.

    After it SIGTERM is held back: the process is about to end, and had it been killed then, it would not
    have ended well.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def interrupted() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupted)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    try:
        yield stop
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
