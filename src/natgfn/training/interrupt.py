"""Signals that end a process wait until what has been computed is on disk."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred(wanted: bool) -> Iterator[Callable[[], None]]:
    """Hold back Ctrl-C and SIGTERM until the function that is yielded is called.

    Then they have the effect that they would have had. A second signal has it at once. Nothing
    that an exception could be lost in, such as a callback of JAX, is ever interrupted.

    Args:
        wanted: whether there is anything to wait for. Signals belong to the main thread alone:
            elsewhere nothing is held back.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    noted: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        restore()
        print("stopping when everything is saved; once more: at once", file=sys.stderr, flush=True)

    def deliver() -> None:
        if noted:
            signal.raise_signal(noted.pop())

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield deliver
    finally:
        restore()
    deliver()
