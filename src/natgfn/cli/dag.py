"""`natgfn dag`: from a table of observations to a posterior over graphs."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import NatgfnError
from ..memory import gigabytes
from .case import DAG_FIT, remember, spelled, takes
from .dag_case import Case, Fit, HowMany, Seed, Seeds, require_positive
from .dag_files import headline, how_it_went, keep_samples, law, write
from .files import make_folder, named
from .interrupt import interruptible
from .report import tell_page
from .voice import Voice

if TYPE_CHECKING:
    from ..dag import Data, SampledPosterior, Verdict, Weights
    from ..optim import AbstractRule

TABLE = "DATA.csv"
"""What the list of commands calls the one that is not named: `natgfn dag DATA.csv`."""


class _TablesToo(TyperGroup):
    """A first word that names no command is that of a table, and so are options before it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in self.commands and args[0] != TABLE:
            return super().resolve_command(ctx, args)
        return None, self.commands[TABLE], args


app = typer.Typer(
    cls=_TablesToo,
    help="Bayesian structure learning: which variables cause which. A table alone, natgfn dag "
    "DATA.csv, is enough; a file that is called like a command is spelled ./exact.",
    context_settings={"ignore_unknown_options": True},
    no_args_is_help=True,
)

PAGE = "posterior.html"
"""The name of the page about what was found."""

EXACT = 14
"""The most variables for which `fit` also computes the exact posterior: half a minute."""

_FITTING, _LEAST = 0.72, 0.01
"""Of the minutes of a fit up to the verdict, those to the end of training; and the minutes that the
chains of the verdict have at least."""

_WRITING, _SECONDS = 0.1, 30.0
"""Of all minutes, those for numbers, effects, pictures and pages; and seconds that these are taken
to need for 64 variables, like the square of their number. Paths, blankets, classes and effects of
10,000 random graphs took 14 of them."""

_EVIDENCE = 2**21
"""Sets the seed of the chains that judge a sampler apart from those that it learns from."""


Out = Annotated[Path, typer.Option(help="The folder to write to.", parser=named, metavar="FOLDER")]


Minutes = Annotated[
    float, typer.Option(help="That it may take, where exact sums would take longer.")
]


@app.command(TABLE, epilog="For example: natgfn dag sachs --log --out sachs")
@takes(Case, Voice)
def table_alone(
    case: Case,
    voice: Voice,
    out: Out = Path("dag"),
    minutes: Minutes = 10.0,
    seed: Seed = 0,
    seeds: Seeds = 1,
) -> None:
    """All of it: exact if that is quick, else a trained sampler, judged by Markov chains.

    The same again goes on in the same folder, for as many minutes as it is given then.
    """
    require_positive(minutes)
    if _is_quick(len(case.table().names), minutes):
        _exact(case, out, voice)
    else:
        with interruptible(out, f"natgfn resume {out}"):
            _fit(case, Fit(minutes=minutes, seed=seed, seeds=seeds), out, voice)


def _is_quick(count: int, minutes: float) -> bool:
    """Whether exact sums are: each variable makes them take four times as long."""
    from ..dag import TABULATED

    return count <= EXACT or (count <= TABULATED and 4 ** (count - EXACT) <= minutes)


@app.command(epilog="For example: natgfn dag exact sachs --log --temperature paper --out sachs")
@takes(Case, Voice)
def exact(case: Case, voice: Voice, out: Out = Path("dag")) -> None:
    """The exact posterior: probabilities of edges, paths and Markov blankets, and a picture."""
    _exact(case, out, voice)


def _exact(case: Case, out: Path, voice: Voice) -> None:
    from ..dag import SAMPLES, Verdict, exact_memory, exact_posterior

    weights = case.weights()
    table = weights.data
    make_folder(out)
    voice.say(f"{_size(table)}; {gigabytes(exact_memory(len(table.names)))} of memory")
    target: dict[str, Any] = {"prior": weights.prior, "temperature": weights.power}
    found = exact_posterior(table, **target, progress=voice.speaks)
    about = {"accuracy": found.accuracy, "samples_for_paths_and_blankets": SAMPLES}
    verdict = Verdict("exact", (f"all graphs were summed over, to {found.accuracy:.0e}",))
    about |= {"verdict": verdict._asdict()}
    about |= case.summary(table) | {"command": spelled("dag exact", case, {"out": out})}
    told = write(out, found, found.sample(SAMPLES), law(found) | about, weights, voice)
    voice.say(
        headline(found),
        f"edges, paths, Markov blankets and a picture are in {out}",
        told["stability"]["note"],
        str(verdict),
    )
    voice.tell(told | {"out": out, "report": tell_page(out, voice, name=PAGE)})


@app.command(epilog="For example: natgfn dag chains data.csv --minutes 5 --out chains")
@takes(Case, Voice)
def chains(
    case: Case,
    voice: Voice,
    out: Out = Path("dag"),
    minutes: Annotated[float, typer.Option(help="How long to run.")] = 5.0,
    candidates: HowMany = None,
    samples: Annotated[int, typer.Option(help="Graphs to draw in the end.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Of all draws.")] = 0,
) -> None:
    """Tempered Markov chains over graphs, up to 64 variables, and whether they agree."""
    from ..dag import Candidates, judge_chains, run_chains

    require_positive(minutes)
    weights = case.weights()
    table = weights.data
    make_folder(out)
    voice.say(_size(table))
    own = {"minutes": minutes, "candidates": candidates, "seed": seed}
    local = Candidates.of(weights, candidates)
    found = run_chains(local, minutes=minutes, seed=seed, progress=voice.speaks)
    verdict, (graphs, log_rewards) = judge_chains(found), found.draw(samples, seed=seed)
    about: dict[str, Any] = {
        "expected_edges": found.expected_edges,
        "expected_log_reward": float(log_rewards.mean()),
        "samples": samples,
        "verdict": verdict._asdict(),
        "quality": found.quality(),
        "swap_rates": found.swaps.tolist(),
    }
    about |= case.summary(table)
    about["options"] |= own
    about["command"] = spelled("dag chains", case, own | {"samples": samples, "out": out})
    keep_samples(out, graphs, log_rewards, found.names)
    told = write(out, found, graphs, about, weights, voice)
    voice.say(
        f"E|G| {found.expected_edges:.4g}, E[log R] {log_rewards.mean():.6g}; "
        f"R-hat {about['quality']['largest_r_hat']:.3f} at most",
        f"edges, paths, Markov blankets, samples and a picture are in {out}",
        told["stability"]["note"],
        str(verdict),
    )
    voice.tell(told | {"out": out, "report": tell_page(out, voice, name=PAGE)})


@app.command(epilog="For example: natgfn dag fit sachs --log --out sachs")
@takes(Case, Voice, Fit)
def fit(case: Case, voice: Voice, how: Fit, out: Out = Path("dag")) -> None:
    """Train a sampler of graphs, and say whether to trust it."""
    how = how.decided()
    with interruptible(out, f"natgfn resume {out}"):
        _fit(case, how, out, voice)


def resume_fit(folder: Path, voice: Voice) -> None:
    """Go on with an interrupted `natgfn dag fit`, or train on for as many minutes again."""
    try:
        told = json.loads((folder / DAG_FIT).read_text())
        case, how = told["case"], Fit(**told["own"])
        targets = case.get("interventions")
        files = {"data": Path(case["data"]), "interventions": targets and Path(targets)}
        case = Case(**case | files)
    except (ValueError, KeyError, TypeError) as error:
        raise NatgfnError(f"{folder / DAG_FIT} does not describe a fit: {error}") from error
    _fit(case, how, folder, voice, resume=True)


def _fit(case: Case, how: Fit, out: Path, voice: Voice, *, resume: bool = False) -> None:
    """With a number of updates and minutes of evidence, or else with minutes for everything."""
    from ..dag import fit as train
    from ..training import RECORD, Record

    started = time.perf_counter()
    chosen, weights = _rule(how.rule), case.weights()
    voice.say(_plan(weights, how.candidates))
    resume = resume or _begin(case, how, out)
    pace: dict[str, Any] = {"updates": how.updates}
    if how.minutes is not None:
        pace = {"minutes": _FITTING * _until_writing(how.minutes, weights.size)}
    found = train(
        weights.data,
        prior=weights.prior,
        temperature=weights.power,
        candidates=how.candidates,
        rule=chosen,
        **pace,
        seed=how.seed,
        seeds=how.seeds,
        samples=how.samples,
        out=out,
        resume=resume,
        progress=voice.speaks,
    )
    summary: dict[str, Any] = {
        "updates": Record(out / RECORD).read()[1][-1]["step"],
        "training_seconds": round(time.perf_counter() - started, 1),
        "samples": len(found.draws.graphs),
        "quality": found.quality(),
    }
    verdict, judged = _judge(found, weights, how, started, voice)
    summary |= judged | {"verdict": verdict._asdict()}
    about, own = case.summary(weights.data), asdict(how)
    about["options"] |= {name: own[name] for name in own if name != "samples"}
    about["command"] = spelled("dag fit", case, own | {"out": out})
    draws = found.draws
    keep_samples(out, draws.graphs, draws.log_rewards, found.names, draws.log_weights)
    told = write(out, found, draws.graphs, law(found) | summary | about, weights, voice)
    voice.say(
        *how_it_went(found, summary),
        f"edges, paths, Markov blankets, samples and a picture are in {out}",
        told["stability"]["note"],
        str(verdict),
    )
    voice.tell(told | {"out": out, "report": tell_page(out, voice, name=PAGE)})


def _until_writing(minutes: float, count: int) -> float:
    """Of the minutes of a fit, those that are not for writing, half of them at least."""
    writing = max(_WRITING * minutes, _SECONDS / 60 * (count / 64) ** 2)
    return minutes - min(writing, minutes / 2)


def _plan(weights: "Weights", candidates: int | None) -> str:
    """What will be summed over, and the memory that it takes."""
    from ..dag import fit_memory, usual_number

    count = weights.size
    number = min(candidates or usual_number(count, weights.data.discrete), count - 1)
    way = "all sets of parents" if number == count - 1 else f"parents among {number} candidates"
    return f"{_size(weights.data)}; {way}; {gigabytes(fit_memory(count))} of memory"


def _begin(case: Case, how: Fit, out: Path) -> bool:
    """Write down what is to be done; whether the folder holds it already, but for the minutes."""
    from ..training import has_checkpoint

    told = asdict(case)
    told["data"] = str(case.data if str(case.data) == "sachs" else case.data.absolute())
    told["interventions"] = case.interventions and str(case.interventions.absolute())
    told = {"case": told, "own": asdict(how)}
    path = out / DAG_FIT
    again = has_checkpoint(out) and path.exists() and _longer(path.read_text(), told)
    remember(path, told, again=again)
    return again


def _longer(earlier: str, told: dict[str, Any]) -> bool:
    """Whether the same was asked for before, in minutes."""
    try:
        before = json.loads(earlier)
        minutes = before["own"].pop("minutes"), told["own"]["minutes"]
        own = {name: value for name, value in told["own"].items() if name != "minutes"}
        return None not in minutes and before == json.loads(json.dumps(told | {"own": own}))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _judge(
    found: "SampledPosterior", weights: "Weights", how: Fit, started: float, voice: Voice
) -> "tuple[Verdict, dict[str, Any]]":
    """By the exact posterior, or beside chains that had no part in the training; and numbers."""
    from ..dag import Candidates, exact_posterior, judge, judge_by_exact, run_chains

    if weights.size <= EXACT:
        target: dict[str, Any] = {"prior": weights.prior, "temperature": weights.power}
        exact = exact_posterior(weights.data, **target)
        return judge_by_exact(found, exact), {"distance_to_exact": found.errors(exact)}
    local = found.target if isinstance(found.target, Candidates) else Candidates.of(weights)
    minutes = how.evidence
    if how.minutes is not None:
        spent = (time.perf_counter() - started) / 60
        minutes = max(_LEAST, _until_writing(how.minutes, weights.size) - spent)
    seed = how.seed + _EVIDENCE
    chains = run_chains(local, minutes=minutes, seed=seed, progress=voice.speaks)
    verdict, trust = judge(found, chains)
    return verdict, {"trust": trust}


def _rule(text: str) -> "AbstractRule | None":
    from ..optim import SampleSpace
    from ..training import named

    if text == "adam":
        return None  # with rates that suit the table
    return SampleSpace.network() if text == "natural" else named("rule", text)


def _size(table: "Data") -> str:
    rows, count = table.values.shape
    some = 0 if table.intervened is None else int(table.intervened.any(axis=1).sum())
    return f"{rows} rows, {count} variables" + (f", {some} rows with interventions" if some else "")
