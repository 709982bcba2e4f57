"""The command line. Every error is one line, and exit code 2."""

import dataclasses
import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from . import envs
from .benchmarks import BENCHMARKS
from .check import check_environment
from .config import (
    KINDS,
    backward_policies,
    choices,
    construct,
    find,
    parse_config,
    put,
    read_config,
)
from .doctor import examine
from .errors import NatgfnError
from .experiments import EXPERIMENTS, reproduce
from .experiments.demo import run_demo
from .report.tables import COLUMNS
from .train import Run
from .train.loop import RECORD
from .train.record import Record, versions

app = typer.Typer(
    help="GFlowNets trained by natural gradient.", no_args_is_help=True, add_completion=False
)
console = Console()

Pairs = Annotated[list[str] | None, typer.Argument(help="Settings, as key=value.")]
Out = Annotated[Path | None, typer.Option(help="The folder to write to.")]


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a command; what a person can mend becomes one line instead of a traceback."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except NatgfnError as error:
            fail(str(error))
        except ValueError as error:
            # Ours are messages to the user; anybody else's is a bug, and keeps its traceback.
            raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
            if Path(__file__).parent not in raised_in.parents:
                raise
            fail(str(error))
        except KeyboardInterrupt:
            typer.echo("stopped; what was finished is kept, and the same command goes on", err=True)
            raise typer.Exit(130) from None

    app.command(name=function.__name__.removesuffix("_"))(guarded)
    return guarded


def fail(message: str) -> None:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    raise typer.Exit(2)


@app.callback(invoke_without_command=True)
def version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"natgfn {versions()['natgfn']}")
        raise typer.Exit


@command
def demo(out: Out = None) -> None:
    """A minute from nothing to a picture: natural against Euclidean."""
    run_demo(out or Path("demo"))


@command
def list_() -> None:
    """Everything that a configuration can name."""
    for kind in KINDS:
        table = Table("name", "options", "what it is", title=kind.__name__.removeprefix("Abstract"))
        for name, cls in choices(kind).items():
            table.add_row(name, _options(cls), _summary(cls))
        console.print(table)
    console.print("Backward policies:", ", ".join(backward_policies()))
    table = Table("experiment", "what it is", title="natgfn reproduce")
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, _summary(experiment))
    console.print(table)


@command
def train(config: Pairs = None, out: Out = None) -> None:
    """Train on a configuration: a TOML file, key=value settings, or both.

    For example: natgfn train env=hypergrid env.side=16 rule=natural updates=5000 seeds=5
    """
    files = [Path(word) for word in config or [] if "=" not in word]
    if len(files) > 1:
        raise NatgfnError(f"got two configuration files, {files[0]} and {files[1]}: expected one")
    chosen = read_config(next(iter(files), None), [word for word in config or [] if "=" in word])
    _train(lambda folder: chosen.train(out=folder), out or _new_folder(chosen))


@command
def resume(run: Annotated[Path, typer.Argument(help="The folder of the run.")]) -> None:
    """Go on with a run that was interrupted, to the same end to the bit."""
    if not run.is_dir():
        raise NatgfnError(f"no run at {run}: expected the folder that `natgfn train` printed")
    header, _ = Record(run / RECORD).read()
    chosen = parse_config(header["configuration"])
    _train(lambda folder: chosen.train(out=folder, resume=True), run)


@command
def reproduce_(
    experiment: Annotated[str, typer.Argument(help=", ".join(EXPERIMENTS))],
    scale: Annotated[str, typer.Option(help="smoke (seconds) or paper (minutes).")] = "smoke",
    seeds: Annotated[int | None, typer.Option(help="How many seeds.")] = None,
    out: Out = None,
) -> None:
    """Run an experiment of the paper, and write its table and figures."""
    page = reproduce(experiment, scale=scale, seeds=seeds, out=out or Path("results"))
    typer.echo(page.read_text())
    typer.echo(f"written to {page.parent}")


@command
def check(
    target: Annotated[str, typer.Argument(help="An environment, as module:Class.")],
    options: Pairs = None,
) -> None:
    """Verify an environment: undo, masks, reachability, and the backward policy."""
    findings = check_environment(_load(target, options or []))
    for finding in findings:
        typer.echo(str(finding))
    if any(finding.failed for finding in findings):
        raise typer.Exit(1)


@command
def bench(name: Annotated[str, typer.Argument(help=", ".join(BENCHMARKS))]) -> None:
    """Measure, beside the limits; exit code 1 if one is missed."""
    raise typer.Exit(BENCHMARKS[find(name, BENCHMARKS, "bench")]())


@command
def doctor() -> None:
    """Check that this machine computes what it should."""
    raise typer.Exit(examine())


def _train(start: Callable[[Path], Run], folder: Path) -> None:
    try:
        run = start(folder)
    except KeyboardInterrupt:
        typer.echo(f"stopped; `natgfn resume {folder}` goes on from the last checkpoint", err=True)
        raise typer.Exit(130) from None
    table = Table("metric", "mean", "deviation", title=f"{run.steps[-1]} updates")
    for name in COLUMNS:
        values = run.metrics[name][-1]
        table.add_row(name, f"{np.mean(values):.4g}", f"{np.std(values):.1g}")
    console.print(table)
    if rejected := int(run.metrics["rejected"][-1].sum()):
        console.print(
            f"[red]{rejected} updates were rejected: they would not have been finite[/red]"
        )
    console.print(f"kept in {folder}")


def _new_folder(chosen: Any) -> Path:
    stem = f"{type(chosen.env).__name__}-{type(chosen.rule).__name__}".lower()
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder


def _load(target: str, pairs: list[str]) -> envs.AbstractEnv:
    """Import a class that the user named, and make one from key=value settings."""
    module_name, colon, name = target.partition(":")
    if not colon:
        raise NatgfnError(f"got {target!r}, expected module:Class, as in natgfn.envs:Hypergrid")
    sys.path.insert(0, str(Path.cwd()))
    try:
        cls = getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        raise NatgfnError(f"cannot import {module_name}: {error}") from error
    except AttributeError as error:
        raise NatgfnError(f"{module_name} has no {name}") from error
    if not (isinstance(cls, type) and issubclass(cls, envs.AbstractEnv)):
        raise NatgfnError(
            f"{target} is not an environment: it must subclass natgfn.envs.AbstractEnv"
        )
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise NatgfnError(f"{target} is not complete: it must define {missing}")
    table: dict[str, Any] = {}
    for pair in pairs:
        put(table, pair)
    return construct(cls, table, name)


def _options(cls: Any) -> str:
    return ", ".join(
        f.name if f.default is dataclasses.MISSING else f"{f.name}={f.default!r}"
        for f in dataclasses.fields(cls)
    )


def _summary(thing: Any) -> str:
    """The first line of a docstring, without its mathematics."""
    return (inspect.getdoc(thing) or "").partition("\n")[0].replace("$", "").replace("\\", "")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
