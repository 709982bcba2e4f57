"""What an interrupted command says."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from ..errors import NatgfnError


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which a batch system sends before it kills."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated


@contextmanager
def interruptible(folder: Path, again: str) -> Iterator[None]:
    """Say where an interrupted run stopped, and how to go on."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _terminate}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    except KeyboardInterrupt as error:
        typer.echo(f"interrupted {_where(folder, again)}", err=True)
        raise typer.Exit(143 if isinstance(error, _Terminated) else 130) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _where(folder: Path, again: str) -> str:
    from ..training import RECORD, Record, has_checkpoint

    records = [path for path in folder.rglob(RECORD) if has_checkpoint(path.parent)]
    try:
        last = max(records, key=lambda path: path.stat().st_mtime)
        return f"at update {Record(last).read()[1][-1]['step']}; go on: {again}"
    except (ValueError, IndexError, OSError, NatgfnError):  # killed before there was anything
        return "before the first checkpoint: start again"
