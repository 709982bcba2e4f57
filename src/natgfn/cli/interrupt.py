"""What an interrupted command says."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


@contextmanager
def interruptible(folder: Path, again: str) -> Iterator[None]:
    """Say where an interrupted run stopped, and how to go on."""
    from ..training import CHECKPOINT, RECORD, Record

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as error:
        kept = sorted(folder.rglob(CHECKPOINT), key=lambda path: path.stat().st_mtime)
        if not kept:
            typer.echo("interrupted before the first checkpoint: start again", err=True)
        else:
            _, lines = Record(kept[-1].parent / RECORD).read()
            typer.echo(f"interrupted at update {lines[-1]['step']}; go on: {again}", err=True)
        raise typer.Exit(130) from error
    finally:
        signal.signal(signal.SIGINT, before)
