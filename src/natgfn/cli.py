"""The command line: one thin function a command.

Bad input is one line on standard error and exit code 2; a check, benchmark or examination
that fails has exit code 1; an interrupted run says how to go on and has exit code 130.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from .dag.cli import app as dag
from .errors import NatgfnError

Out = Annotated[Path | None, typer.Option(help="The folder to write to.")]
Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", show_default=False)]


class _OneLineErrors(TyperGroup):
    """Turns errors that a person can act on into a line without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (NatgfnError, ValueError, OSError) as error:
            if isinstance(error, ValueError) and not _is_ours(error):
                raise
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2) from error


def _is_ours(error: BaseException) -> bool:
    """Whether natgfn raised it itself; other errors are bugs, and keep their traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals["__name__"].startswith("natgfn.")


app = typer.Typer(
    cls=_OneLineErrors,
    help="GFlowNets trained by natural gradient.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(dag, name="dag")


def main() -> None:
    """The entry point."""
    app()


def _show_version(wanted: bool) -> bool:
    if wanted:
        from .train.record import versions

        typer.echo(f"natgfn {versions()['natgfn']}")
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="The version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(out: Out = None) -> None:
    """Natural against Euclidean on a small grid: a table and a picture, in a minute."""
    from .experiments.demo import run_demo

    run_demo(out or Path("demo"))


@app.command("list")
def list_everything() -> None:
    """Everything that can be configured, and every experiment and benchmark."""
    from .benchmarks import BENCHMARKS
    from .config import catalogue, fields
    from .experiments import EXPERIMENTS

    table = Table("setting", "name", "what it is", "parameters", box=None, pad_edge=False)
    for where, choices in catalogue():
        for row, (name, make) in enumerate(choices.items()):
            parameters = fields(make) if inspect.isclass(make) else {}
            shown = "\n".join(_default(p) for p in parameters.values())
            about = _summary(getattr(make, "__self__", make))
            table.add_row(where if row == 0 else "", Text(name), Text(about), Text(shown))
    commands = {"reproduce": EXPERIMENTS, "bench": BENCHMARKS}
    for command, entries in commands.items():
        for row, (name, thing) in enumerate(entries.items()):
            table.add_row(f"natgfn {command}" if row == 0 else "", name, Text(_summary(thing)))
    _console().print(table)


def _default(parameter: inspect.Parameter) -> str:
    return (
        parameter.name
        if parameter.default is parameter.empty
        else str(parameter.replace(annotation=parameter.empty))
    )


def _summary(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _console() -> Console:
    # A table that is piped into a file or a pager is not squeezed into 80 columns.
    return Console() if sys.stdout.isatty() else Console(width=160)


@app.command(epilog="For example: natgfn train env=hypergrid env.side=16 rule=natural updates=500")
def train(settings: Settings = None, out: Out = None) -> None:
    """Train a sampler, from a TOML file, key=value settings, or both: CONFIG.toml key=value."""
    from .config import arguments, load

    settings = settings or []
    files = [text for text in settings if not re.match(r"[\w.-]+=", text)]
    if len(files) > 1:
        raise NatgfnError(f"expected one configuration file and key=value, got {files}")
    overrides = [text for text in settings if text not in files]
    made = arguments(load(Path(files[0]) if files else None, overrides))
    _train(made, out or _free_folder(made), resume=False)


def _free_folder(arguments: dict[str, Any]) -> Path:
    from .train import train

    default = inspect.signature(train).parameters["rule"].default
    parts = (arguments["env"], arguments.get("rule", default))
    stem = "-".join(type(part).__name__.lower() for part in parts)
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder


@app.command()
def certify(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    out: Out = None,
) -> None:
    """Whether the Fisher of a run can be trusted: a table, and a picture over its training."""
    from rich.progress import track

    from .certify import report

    opened = _reopen(run)
    batch, damping = report.own_settings(opened)
    table = Table("number", "mean", "lowest", "highest", "over seeds", box=None, pad_edge=False)
    for name, values in sorted(report.full(opened).items()):
        spread = f"{values.size} seeds" if values.size > 1 else "1 seed"
        cells = (f"{value:.4g}" for value in (values.mean(), values.min(), values.max()))
        table.add_row(name, *cells, spread)
    last = opened.history[-1]["step"]
    typer.echo(f"update {last}, batch {batch}, damping {damping:g}; the reference Fisher is exact")
    _console().print(table)
    if not opened.certificates:
        typer.echo("train with certify_every=100, say, to see rho over training as well")
        return
    total = len(report.grid(opened)) * min(report.SNAPSHOTS, len(opened.certificates["step"]))
    points = list(track(report.over_training(opened), "certifying", total=total))
    table = Table("update", *(f"N={n}, {d:g}" for n, d in report.grid(opened)), box=None)
    for step in dict.fromkeys(point.step for point in points):
        row = [f"{np.mean(point.rho):.3g}" for point in points if point.step == step]
        table.add_row(str(step), *row)
    typer.echo("rho by batch size N and damping (mean over seeds; the guarantee needs rho < 1):")
    _console().print(table)
    typer.echo(f"figure: {report.draw(opened, points, (out or run) / 'certificates.png')}")


def _reopen(folder: Path) -> Any:
    from .train import reopen

    return reopen(folder, **_arguments_of(folder))


@app.command()
def resume(run: Annotated[Path, typer.Argument(help="The folder of a run.")]) -> None:
    """Go on with a run that was interrupted, exactly as if it had not been."""
    _train(_arguments_of(run), run, resume=True)


def _arguments_of(run: Path) -> dict[str, Any]:
    """What a run was trained with, from its record."""
    from .config import arguments
    from .train.loop import RECORD
    from .train.record import Record

    header, _ = Record(run / RECORD).read()
    try:
        return arguments(header["configuration"])
    except NatgfnError as error:
        raise NatgfnError(
            f"{run} cannot be made again from its record ({error}); if its environment is your "
            "own, go on from Python: natgfn.train(env, ..., out=..., resume=True)"
        ) from error


def _train(arguments: dict[str, Any], out: Path, *, resume: bool) -> None:
    from .train import train

    with _interruptible(out, f"natgfn resume {out}"):
        run = train(**arguments, out=out, resume=resume)
    table = Table("metric", "mean", "std over seeds", box=None, pad_edge=False)
    for name, values in run.metrics.items():
        if name != "rejected":
            with np.errstate(invalid="ignore"):  # a metric may be infinite
                table.add_row(name, f"{values[-1].mean():.4g}", f"{values[-1].std():.2g}")
    Console().print(table)
    if rejected := int(run.metrics["rejected"][-1].sum()):
        typer.echo(f"{rejected} steps were rejected: they would have made parameters infinite")
    typer.echo(f"{run.steps[-1]} updates, {len(run.laws)} seeds; the run is in {out}")


@contextmanager
def _interruptible(folder: Path, again: str) -> Iterator[None]:
    """Say where an interrupted run stopped, and how to go on."""
    from .train.loop import CHECKPOINT, RECORD
    from .train.record import Record

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


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment; natgfn list shows them.")],
    scale: Annotated[str, typer.Option(help="smoke (seconds) or paper (minutes).")] = "smoke",
    seeds: Annotated[int | None, typer.Option(help="Instead of the paper's number.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for results.")] = Path("results"),
    only: Annotated[
        list[str] | None,
        typer.Option(help="A word that a run's title must have, such as H=128 or seed=0."),
    ] = None,
) -> None:
    """Run an experiment of the paper and write its tables and figures."""
    from .experiments import reproduce

    with _interruptible(out, "give the same command again"):
        typer.echo(
            f"results: {reproduce(name, scale=scale, seeds=seeds, out=out, only=only or ())}"
        )


@app.command(epilog="For example: natgfn check natgfn.envs:Hypergrid side=4")
def check(
    target: Annotated[str, typer.Argument(metavar="MODULE:ENV")], settings: Settings = None
) -> None:
    """Check that an environment of yours keeps its promises, over all of its states."""
    from .check import check_environment
    from .config import construct, put

    make = _import(target)
    findings = check_environment(construct(make, put({}, settings or [])))
    for finding in findings:
        typer.echo(finding)
    failed = sum(finding.ok is False for finding in findings)
    typer.echo(
        f"{target}: {failed} of {len(findings)} checks failed" if failed else f"{target}: fine"
    )
    raise typer.Exit(1 if failed else 0)


def _import(target: str) -> Callable[..., Any]:
    """The environment class that `module:Class` names; the current folder counts."""
    from .envs import AbstractEnv

    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise NatgfnError(
            f"expected module:Class, for example natgfn.envs:Hypergrid, got {target!r}"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise NatgfnError(
            f"cannot import {module_name}: {type(error).__name__}: {error}; run natgfn check from "
            "the folder that holds it"
        ) from error
    if not hasattr(module, name):
        raise NatgfnError(f"{module_name} has no {name!r}: expected an environment class")
    make = getattr(module, name)
    if not (inspect.isclass(make) and issubclass(make, AbstractEnv)):
        raise NatgfnError(f"{target} is not an environment: expected a natgfn.envs.AbstractEnv")
    if inspect.isabstract(make):
        missing = ", ".join(sorted(make.__abstractmethods__))
        raise NatgfnError(f"{target} is abstract: it must define {missing}")
    return make


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="A benchmark; natgfn list shows them.")],
) -> None:
    """Measure speed against its limits."""
    from .benchmarks import BENCHMARKS

    if name not in BENCHMARKS:
        raise NatgfnError(f"no benchmark {name!r}: expected one of {', '.join(BENCHMARKS)}")
    raise typer.Exit(BENCHMARKS[name]())


@app.command()
def doctor() -> None:
    """Whether this machine computes Fisher systems correctly."""
    from .doctor import HEALTHY, report

    last = ""
    for last in report():
        typer.echo(last)
    raise typer.Exit(0 if last == HEALTHY else 1)


if __name__ == "__main__":
    main()
