"""How a command answers: text for people, one JSON object for programs, or nothing."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Voice:
    """Options of every command that finds something."""

    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False

    @property
    def speaks(self) -> bool:
        """Whether a person listens; progress is for them too."""
        return not (self.quiet or self.as_json)

    def say(self, *parts: str | Table) -> None:
        """Lines and tables, for people."""
        if self.speaks:
            for part in parts:
                show(part) if isinstance(part, Table) else typer.echo(part)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Say what is being done, on standard error, if it takes more than a second."""
        timer = threading.Timer(1.0, typer.echo, (what,), {"err": True})
        if self.speaks:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def tell(self, found: dict[str, Any]) -> None:
        """What was found, for programs."""
        if self.as_json:
            from ..training import plain

            typer.echo(json.dumps(plain(found), allow_nan=False, default=str))


def show(table: Table) -> None:
    """Print a table; one that is piped into a file or a pager is not squeezed into a terminal."""
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)


def plain_table(*columns: str) -> Table:
    """A table without lines."""
    return Table(*columns, box=None, pad_edge=False)
