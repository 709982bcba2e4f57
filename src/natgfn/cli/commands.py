"""The command line: one thin function a command.

Bad input is one line on standard error and exit code 2; a check, benchmark or examination
that fails has exit code 1; an interrupted run says how to go on and has exit code 130.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import NatgfnError
from . import dag, graphical
from .case import DAG_FIT, GRAPHICAL_FIT, is_fit, takes
from .checkout import from_checkout
from .files import named
from .interrupt import interruptible
from .processes import speaks_for_all, together
from .report import tell_page, write_report
from .voice import Voice, plain_table

if TYPE_CHECKING:
    from ..sweeps import Study
    from ..training import Setup

Out = Annotated[
    Path | None, typer.Option(help="The folder to write to.", parser=named, metavar="FOLDER")
]
Processes = Annotated[
    int | None,
    typer.Option(help="That share every batch, on a core each: started here, or by srun."),
]
Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", show_default=False)]


class _OneLineErrors(TyperGroup):
    """Turns errors that a person can act on into a line without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (NatgfnError, ValueError, OSError, MemoryError, RuntimeError) as error:
            if isinstance(error, ValueError) and not _is_ours(error):
                raise
            if isinstance(error, RuntimeError) and _OUT_OF_MEMORY not in str(error):
                raise
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2) from error


_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
"""In an error of JAX, which says how much it could not get."""


def _is_ours(error: BaseException) -> bool:
    """Whether natgfn raised it itself; other errors are bugs, and keep their traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    module = trace.tb_frame.f_globals["__name__"]
    return module.partition(".")[0] in ("natgfn", "paper", "benchmarks")


app = typer.Typer(
    cls=_OneLineErrors,
    help="GFlowNets trained by natural gradient. natgfn --install-completion teaches your shell "
    "to complete commands and options.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(dag.app, name="dag")
app.add_typer(graphical.app, name="graphical")


def _show_version(wanted: bool) -> bool:
    if wanted:
        from importlib.metadata import distributions

        installed = (found.version for found in distributions(name="natgfn"))
        typer.echo(f"natgfn {next(installed, 'not installed')}")  # run from a source tree
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
    from .demo import run_demo

    run_demo(out or Path("demo"))


@app.command("list")
def list_everything(
    group: Annotated[
        str | None, typer.Argument(help="One group with its options: envs, rules, solvers, ...")
    ] = None,
) -> None:
    """Everything that can be configured, and every experiment and benchmark."""
    from .listing import lines

    for line in lines(group):
        typer.echo(line)


@app.command(epilog="For example: natgfn train env=hypergrid env.side=16 rule=natural updates=500")
@takes(Voice)
def train(
    voice: Voice, settings: Settings = None, out: Out = None, processes: Processes = None
) -> None:
    """Train a sampler, from a TOML file, key=value settings, or both: CONFIG.toml key=value."""
    from ..training import read_settings, setup_from

    configuration = read_settings(*_file_and_settings(settings))
    env = configuration.get("env")
    name = env.get("name") if isinstance(env, dict) else env
    if str(name).lower() == "assignments":
        raise NatgfnError(
            "env: Assignments needs a factor graph, which a configuration cannot hold: give it as "
            "a file, natgfn graphical fit MODEL.uai"
        )
    setup = setup_from(configuration)
    new = out is None and speaks_for_all(processes)
    with _new_folder(setup) if new else nullcontext(out or Path()) as folder:
        _train(setup, folder, voice, resume=False, processes=processes)


def _file_and_settings(words: list[str] | None) -> tuple[Path | None, list[str]]:
    """What was given: a configuration file, if any, and the rest, key=value."""
    words = words or []
    files = [text for text in words if not re.match(r"[\w.-]+=", text)]
    if len(files) > 1:
        raise NatgfnError(f"expected one configuration file and key=value, got {files}")
    return Path(files[0]) if files else None, [text for text in words if text not in files]


def _made(folder: Path) -> bool:
    """Whether the folder is new; made in one step, so that two processes never share it."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


@contextmanager
def _new_folder(setup: "Setup") -> Iterator[Path]:
    """A folder that no other process has, named after the run; not kept if nothing gets into it."""
    parts = [part for part in (setup.env, setup.rule) if part is not None]
    stem = "-".join(type(part).__name__.lower() for part in parts)
    Path("runs").mkdir(exist_ok=True)
    folder = next(f for n in count(1) if _made(f := Path("runs") / f"{stem}-{n}"))
    try:
        yield folder
    finally:
        with suppress(OSError):  # it is not empty
            folder.rmdir()


@app.command(
    epilog="For example: natgfn sweep env=hypergrid rule=adam rule.rate=0.001,0.01,0.1 seeds=3"
)
@takes(Voice)
def sweep(
    voice: Voice,
    settings: Settings = None,
    out: Annotated[
        Path, typer.Option(help="The folder to write to.", parser=named, metavar="FOLDER")
    ] = Path("sweep"),
    metric: Annotated[
        str | None, typer.Option(help="By which settings are compared: kl, elbo, ...")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Of Dask, tcp://HOST:PORT; else workers are started here.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="To start here; one for each core by default.")
    ] = None,
) -> None:
    """Settings times seeds, each trial a run: STUDY.toml key=a,b,c. The same again goes on."""
    from ..sweeps import study_from

    path, overrides = _file_and_settings(settings)
    study = study_from(path, overrides)
    _sweep(study, out, voice, metric=metric, scheduler=scheduler, processes=processes)


def _sweep(study: "Study", out: Path, voice: Voice, **how: Any) -> None:
    from ..sweeps import run_study

    with interruptible(out, f"natgfn resume {out}"):
        found = run_study(study, out, progress=voice.speaks, **how)
    table = plain_table(*(name.replace("_", " ") for name in found.settings[0]))
    for row in found.settings[:20]:
        table.add_row(*(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()))
    voice.say(table)
    if best := found.best:
        told = f"best: {found.label(best)}, {found.metric} {best[found.metric]:.4g}"
        if best["seeds"] > 1:
            told += f" +- {best['standard_error']:.2g} over {best['seeds']} seeds, and the best in"
            told += f" {best['best_share']:.0%} of resamples of the seeds; judge it on others"
        voice.say(told)
    voice.say(f"{len(found.lines)} trials; all of them are in {out}/trials.csv")
    page = tell_page(out, voice, found)
    told = {"out": out, "metric": found.metric, "settings": found.settings, "report": page}
    voice.tell(told | {"failed": dict(found.failed)})
    if found.failed:
        typer.echo(
            f"{len(found.failed)} trials failed; the same command tries them again", err=True
        )
        raise typer.Exit(1)


@app.command()
@takes(Voice)
def certify(
    voice: Voice,
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    out: Out = None,
) -> None:
    """Whether the Fisher of a run can be trusted: a table, and a picture over its training."""
    from .certifying import certify_run

    certify_run(run, out or run, voice)


@app.command()
@takes(Voice)
def resume(
    voice: Voice,
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    processes: Processes = None,
) -> None:
    """Go on with a run that was interrupted, exactly as if it had not been."""
    from ..sweeps import STUDY, study_in
    from ..training import load_setup

    if processes is not None and ((run / STUDY).exists() or is_fit(run)):
        raise NatgfnError(f"natgfn train did not make {run}: leave --processes out")
    if (run / STUDY).exists():
        _sweep(study_in(run), run, voice)
        return
    for name, fits in ((DAG_FIT, dag), (GRAPHICAL_FIT, graphical)):
        if (run / name).exists():
            with interruptible(run, f"natgfn resume {run}"):
                fits.resume_fit(run, voice)
            return
    _train(load_setup(run), run, voice, resume=True, processes=processes)


TELLING = (
    *("kl", "tv", "marginal_error", "elbo", "log_z", "effective_share", "modes", "discovered"),
    "train_loss",
)
"""The metrics that a finished run prints, those that it has; its page has all."""


def _train(setup: "Setup", out: Path, voice: Voice, *, resume: bool, processes: int | None) -> None:
    import numpy as np

    from ..training import require_equal_parts
    from ..training import run as train

    again = f"natgfn resume {out}"
    if processes is not None:
        require_equal_parts("--processes", processes, setup.batch)
        again += f" --processes {processes}"
    with interruptible(out, again), together(processes) as devices:
        run = train(setup, out=out, resume=resume, devices=devices, progress=voice.speaks)
    if not speaks_for_all(processes):
        return
    last = {name: values[-1] for name, values in run.metrics.items()}
    table = plain_table("metric", "mean", "std over seeds")
    for name in (name for name in TELLING if name in last):
        with np.errstate(invalid="ignore"):  # a metric may be infinite
            table.add_row(name, f"{last[name].mean():.4g}", f"{last[name].std():.2g}")
    voice.say(table)
    if unknown := run.unknown:
        names = ", ".join(sorted(unknown))
        voice.say(f"{sum(unknown.values()):,} numbers of the record are NaN: {names}")
    if rejected := int(last["rejected"].sum()):
        voice.say(f"{rejected} steps were rejected: they would have made parameters infinite")
    seeds = f"{run.setup.seeds} seed{'s' if run.setup.seeds > 1 else ''}"
    seconds = run.history[-1]["seconds"]
    voice.say(f"{run.steps[-1]} updates, {seeds}, {seconds:.4g} s; the run is in {out}")
    page = tell_page(out, voice, run)
    voice.say(
        f"next: natgfn report {out} OTHER (beside another run), natgfn certify {out} (whether its "
        "Fisher can be trusted)"
    )
    found = {"out": out, "updates": run.steps[-1].item(), "seeds": run.setup.seeds}
    metrics = {name: values.tolist() for name, values in last.items()}
    voice.tell(found | {"seconds": seconds, "metrics": metrics, "report": page})


@app.command(epilog="For example: natgfn report runs/hypergrid-1 runs/hypergrid-2 --out page.html")
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[
        Path, typer.Option(help="The file to write.", parser=named, metavar="FILE")
    ] = Path("report.html"),
) -> None:
    """One HTML page about a run, or about several side by side, for any browser."""
    write_report(runs, out)
    typer.echo(f"the page is {out}")


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment that natgfn list shows, or all.")],
    scale: Annotated[
        str, typer.Option(help="smoke (seconds each) or paper (minutes to hours).")
    ] = "smoke",
    seeds: Annotated[int | None, typer.Option(help="Instead of the paper's number.")] = None,
    out: Annotated[
        Path, typer.Option(help="The folder for results.", parser=named, metavar="FOLDER")
    ] = Path("results"),
    only: Annotated[
        list[str] | None,
        typer.Option(help="A word that a run's title must have, such as H=128 or seed=0."),
    ] = None,
) -> None:
    """Run an experiment of the paper, or all, and write tables and figures.

    With all, an index lists every table and figure of the paper by its label.
    """
    paper = from_checkout("paper", "reproduce")
    if name == "all" and only:
        raise NatgfnError("--only chooses runs of one experiment: name it instead of all")
    with interruptible(out, "give the same command again"):
        if name == "all":
            page = paper.reproduce_all(scale=scale, seeds=seeds, out=out)
        else:
            page = paper.reproduce(name, scale=scale, seeds=seeds, out=out, only=only or ())
            if (out / f"index.{scale}.md").exists():
                paper.write_index(out, scale)
        typer.echo(f"results: {page}")


@app.command(epilog="For example: natgfn check natgfn.envs:Hypergrid side=4, or model.uai")
@takes(Voice)
def check(
    voice: Voice,
    target: Annotated[str, typer.Argument(metavar="MODULE:ENV|MODEL.uai")],
    settings: Settings = None,
    max_states: Annotated[
        int, typer.Option(help="The most states to list; beyond, a sample is checked.")
    ] = 2**18,
) -> None:
    """Check that an environment of yours keeps its promises, in all states or a sample of them."""
    from ..check import check_environment
    from ..envs import Assignments
    from ..graphical import read_uai
    from ..training import construct, put

    if target.endswith(".uai"):
        make, given = Assignments, {"graph": read_uai(target)}
    else:
        make, given = _import(target), {}
    env = construct(make, put({}, settings or []) | given)
    doing = f"{target}: looking at up to {max_states:,} states, or at trajectories to their end ..."
    with voice.waiting(doing):
        findings = check_environment(env, max_states=max_states)
    failed = sum(finding.ok is False for finding in findings)
    verdict = f"{failed} of {len(findings)} checks failed" if failed else "fine"
    voice.say(*map(str, findings), f"{target}: {verdict}")
    voice.tell({"target": target, "ok": not failed, "findings": [f._asdict() for f in findings]})
    raise typer.Exit(1 if failed else 0)


def _import(target: str) -> Callable[..., Any]:
    """The environment class that `module:Class` names; the current folder counts."""
    from ..envs import AbstractEnv

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
    out: Out = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Less of it, to see that it runs.")
    ] = False,
) -> None:
    """Measure speed against its limits."""
    known = from_checkout("benchmarks", "bench").BENCHMARKS
    if name not in known:
        raise NatgfnError(f"no benchmark {name!r}: expected one of {', '.join(known)}")
    given = {"out": out} if out is not None else {}
    given |= {"quick": True} if quick else {}
    for option in given:
        if option not in inspect.signature(known[name]).parameters:
            raise NatgfnError(f"bench {name} has no --{option}: leave it out")
    raise typer.Exit(known[name](**given))


@app.command()
def doctor() -> None:
    """Whether this machine computes Fisher systems correctly."""
    from .doctor import HEALTHY, report

    last = ""
    for last in report():
        typer.echo(last)
    raise typer.Exit(0 if last == HEALTHY else 1)
