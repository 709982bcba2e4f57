"""The command line. What it takes is loaded when it is called, so that Ctrl-C is one line."""

import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .commands import app as app


def main() -> None:
    """The entry point. Until there is something to keep, Ctrl-C ends the process at once."""
    signal.signal(signal.SIGINT, _leave)
    importlib.import_module(".commands", __name__).app()


def _leave(*_: object) -> None:
    # Not an exception: libraries that are being imported would turn it into others.
    sys.stdout.flush()
    print("interrupted", file=sys.stderr, flush=True)
    os._exit(130)


def __getattr__(name: str) -> Any:
    if name == "app":
        return importlib.import_module(".commands", __name__).app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
