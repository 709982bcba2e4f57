"""How far something is: a bar in a terminal; elsewhere a plain line every now and then.

Logs of batch systems, files behind `nohup` and notebooks get lines such as

    training: 1,200 of 4,000, 5 min left, KL 1.30e-03
"""

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

LINES = 30.0
"""Seconds from one plain line to the next."""

_FRAMES = 0.1  # seconds from one look of a bar to the next

T = TypeVar("T")


class Progress:
    """A task of `total` steps, or of nobody knows how many, while it is entered."""

    def __init__(self, title: str, total: int | None, *, shown: bool = True, lines: float = LINES):
        self.title, self.total, self.shown, self.lines = title, total, shown, lines
        console = Console()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bar = Bar(*columns, console=console, disable=not (shown and console.is_terminal))
        self._task = self._bar.add_task(title, total=total, note="")
        self._done, self._note = 0, ""

    def __enter__(self) -> "Progress":
        self._bar.start()
        self._started = self._said = time.monotonic()
        self._first: int | None = None
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.update(self._task, completed=self._done, note=self._note)
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line of its own."""
        if not self._bar.disable:
            self._bar.console.print(Text(text))
        elif self.shown:
            print(text, flush=True)

    def update(self, done: int, note: str = "") -> None:
        """So many steps are made; a note, which may have rich's markup, is shown beside them."""
        self._done, self._note = done, note
        self._first = done if self._first is None else self._first
        now = time.monotonic()
        if now < self._said + (self.lines if self._bar.disable else _FRAMES):
            return
        self._said = now
        if not self._bar.disable:
            self._bar.update(self._task, completed=done, note=note)
        elif self.shown:
            self.say(", ".join(filter(None, self._parts(now))))

    def _parts(self, now: float) -> Iterator[str]:
        if self.total is None:
            yield f"{self.title}: {self._done:,}"
        else:
            yield f"{self.title}: {self._done:,} of {self.total:,}"
            if self._first is not None and self._done > self._first:
                each = (now - self._started) / (self._done - self._first)
                yield f"{_duration(each * (self.total - self._done))} left"
        yield Text.from_markup(self._note).plain


def _duration(seconds: float) -> str:
    """As a person says it."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def track(items: Sequence[T], title: str, *, shown: bool = True) -> Iterator[T]:
    """The items, while it is said how many of them are done."""
    with Progress(title, len(items), shown=shown) as progress:
        progress.update(0)
        for number, item in enumerate(items, start=1):
            yield item
            progress.update(number)
