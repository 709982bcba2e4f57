"""What a benchmark leaves behind: numbers as JSON, a page, and a picture."""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from natgfn.figures import save
from natgfn.training import git_state, plain, versions

from .measure import Measurement

BUSY = 0.5
"""The load of a machine, in running processes, above which times are not to be trusted."""


def circumstances() -> dict[str, Any]:
    """What times depend on: the commit, the versions, the machine and its load at the start."""
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"warning: load {load:.2f} on this machine: times are noisy", file=sys.stderr)
    machine = {"cores": os.cpu_count(), "processor": _processor(), "load": load}
    return {"git": git_state(), "versions": versions(), "machine": machine}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is being measured."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting")
        yield lambda text: bar.update(task, description=text)


def as_rows(measurements: list[Measurement]) -> list[dict[str, Any]]:
    """Measurements as JSON holds them, each with its verdict."""
    return [m._asdict() | {"verdict": m.verdict} for m in measurements]


def limits_table(rows: list[dict[str, Any]]) -> str:
    """Every measurement that has a limit, as a table."""
    cells = []
    for row in rows:
        bound = "at least" if row["at_least"] else "at most"
        limit = f"{bound} {row['limit']:g}{row['unit']}"
        cells.append([row["what"], f"{row['value']:.3g}{row['unit']}", limit, row["verdict"]])
    return table(["", "measured", "limit", ""], cells)


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(
    out: Path, name: str, title: str, results: dict[str, Any], body: str, figure: Figure
) -> None:
    """Write `name.json`, `name.md` and `name.png` into a folder, and say where."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(plain(results), indent=1, allow_nan=False)
    (out / f"{name}.json").write_text(text + "\n")
    page = f"# {title}\n\n{_about(results)}\n\n{body}\n\n![{title}]({name}.png)\n"
    (out / f"{name}.md").write_text(page)
    save(figure, out / f"{name}.png")
    print(f"results: {out / name}.md")


def _about(results: dict[str, Any]) -> str:
    git, machine = results["git"], results["machine"]
    commit = "an unknown commit"
    if git is not None:
        commit = git["commit"][:10] + (", with changes" if git["changed"] else "")
    found = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return (
        f"Commit {commit}; {machine['cores']} cores ({machine['processor']}), load "
        f"{machine['load']:.2f} at the start; {found}."
    )
