"""`natgfn dag`: from a table of observations to a posterior over graphs."""

import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import NatgfnError
from ..memory import gigabytes
from .case import DAG_FIT, remember, spelled, takes
from .dag_case import Case
from .dag_files import headline, how_it_went, keep_samples, law, write
from .files import make_folder, named
from .interrupt import interruptible
from .report import tell_page
from .voice import Voice

if TYPE_CHECKING:
    from ..dag import Data, SampledPosterior, Verdict
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

_FITTING, _WRITING, _LEAST = 0.65, 0.1, 0.01
"""Of the minutes of a fit: up to the end of training, and after the chains that judge it; and the
minutes that these have at least."""

_EVIDENCE = 2**21
"""Sets the seed of the chains that judge a sampler apart from those that it learns from."""


Out = Annotated[Path, typer.Option(help="The folder to write to.", parser=named, metavar="FOLDER")]


Minutes = Annotated[
    float, typer.Option(help="That it may take, where exact sums would take longer.")
]
Seed = Annotated[int, typer.Option(help="Of the parameters and of all draws.")]


@app.command(TABLE, epilog="For example: natgfn dag sachs --log --out sachs")
@takes(Case, Voice)
def table_alone(
    case: Case, voice: Voice, out: Out = Path("dag"), minutes: Minutes = 10.0, seed: Seed = 0
) -> None:
    """All of it: exact if that is quick, else a trained sampler, judged by Markov chains."""
    _require_positive(minutes)
    if _is_quick(len(case.table().names), minutes):
        _exact(case, out, voice)
    else:
        with interruptible(out, f"natgfn resume {out}"):
            _fit(case, out, voice, minutes=minutes, seed=seed)


def _require_positive(minutes: float) -> None:
    if not 0 < minutes < math.inf:
        raise NatgfnError(f"minutes must be positive, got {minutes:g}")


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

    table = case.table()
    prior, power = case.prior(), case.power()
    make_folder(out)
    voice.say(f"{_size(table)}; {gigabytes(exact_memory(len(table.names)))} of memory")
    found = exact_posterior(table, prior=prior, temperature=power, progress=voice.speaks)
    about = {"accuracy": found.accuracy, "samples_for_paths_and_blankets": SAMPLES}
    verdict = Verdict("exact", (f"all graphs were summed over, to {found.accuracy:.0e}",))
    about |= {"verdict": verdict._asdict()}
    about |= case.summary(table) | {"command": spelled("dag exact", case, {"out": out})}
    told = write(out, found, found.sample(SAMPLES), law(found) | about, table, voice)
    voice.say(
        headline(found),
        f"edges, paths, Markov blankets and a picture are in {out}",
        str(verdict),
    )
    voice.tell(told | {"out": out, "report": tell_page(out, voice, name=PAGE)})


HowMany = Annotated[
    int | None,
    typer.Option(help="Parents of a variable in all combinations, with one besides; else as fit."),
]


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
    from ..dag import chains as run
    from ..dag import judge_chains

    table = case.table()
    target: dict[str, Any] = {"prior": case.prior(), "temperature": case.power()}
    make_folder(out)
    voice.say(_size(table))
    own = {"minutes": minutes, "candidates": candidates, "seed": seed}
    found = run(table, **target, **own, progress=voice.speaks)
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
    told = write(out, found, graphs, about, table, voice)
    voice.say(
        f"E|G| {found.expected_edges:.4g}, E[log R] {log_rewards.mean():.6g}; "
        f"R-hat {about['quality']['largest_r_hat']:.3f} at most",
        f"edges, paths, Markov blankets, samples and a picture are in {out}",
        str(verdict),
    )
    voice.tell(told | {"out": out, "report": tell_page(out, voice, name=PAGE)})


@app.command(epilog="For example: natgfn dag fit sachs --log --out sachs")
@takes(Case, Voice)
def fit(
    case: Case,
    voice: Voice,
    out: Out = Path("dag"),
    updates: Annotated[
        int | None, typer.Option(help="Of the sampler; 4,000 unless there are minutes.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="To keep to, chains and all, in place of updates.")
    ] = None,
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(help="Samplers, trained one after the other.")] = 1,
    samples: Annotated[int, typer.Option(help="Graphs to draw in the end.")] = 10_000,
    rule: Annotated[
        str,
        typer.Option(
            help="adam, natural, or any rule of natgfn list with its settings, as in "
            "'{name=\"Adam\", rate=3e-4}'."
        ),
    ] = "adam",
    candidates: HowMany = None,
    evidence: Annotated[
        float | None,
        typer.Option(
            help="Minutes of independent chains, where exact sums take too long; 2 unless there "
            "are minutes of all."
        ),
    ] = None,
) -> None:
    """Train a sampler of graphs, and say whether to trust it."""
    if minutes is None:
        updates = 4_000 if updates is None else updates
        evidence = 2.0 if evidence is None else evidence
    elif updates is not None or evidence is not None:
        raise NatgfnError("give minutes, which are for everything, or updates and evidence")
    else:
        _require_positive(minutes)
    own = {"updates": updates, "minutes": minutes, "seed": seed, "seeds": seeds}
    own |= {"samples": samples, "rule": rule, "candidates": candidates, "evidence": evidence}
    with interruptible(out, f"natgfn resume {out}"):
        _fit(case, out, voice, **own)


def resume_fit(folder: Path, voice: Voice) -> None:
    """Go on with an interrupted `natgfn dag fit`."""
    try:
        told = json.loads((folder / DAG_FIT).read_text())
        case, own = told["case"], told["own"]
        targets = case.get("interventions")
        files = {"data": Path(case["data"]), "interventions": targets and Path(targets)}
        case = Case(**case | files)
    except (ValueError, KeyError, TypeError) as error:
        raise NatgfnError(f"{folder / DAG_FIT} does not describe a fit: {error}") from error
    _fit(case, folder, voice, **own, resume=True)


def _fit(
    case: Case,
    out: Path,
    voice: Voice,
    *,
    seed: int,
    updates: int | None = None,
    minutes: float | None = None,
    seeds: int = 1,
    samples: int = 10_000,
    rule: str = "adam",
    candidates: int | None = None,
    evidence: float | None = None,
    resume: bool = False,
) -> None:
    """With a number of updates and minutes of evidence, or else with minutes for everything."""
    from ..dag import exact_posterior, fit_memory, judge_by_exact, usual_number
    from ..dag import fit as train
    from ..training import RECORD, Record

    started = time.perf_counter()
    chosen, table = _rule(rule), case.table()
    count = len(table.names)
    number = min(candidates or usual_number(count, table.discrete), count - 1)
    way = "all sets of parents" if number == count - 1 else f"parents among {number} candidates"
    voice.say(f"{_size(table)}; {way}; {gigabytes(fit_memory(count))} of memory")
    own = {"updates": updates, "minutes": minutes, "seed": seed, "seeds": seeds}
    own |= {"samples": samples, "rule": rule, "candidates": candidates, "evidence": evidence}
    if not resume:
        told = asdict(case)
        told["data"] = str(case.data if str(case.data) == "sachs" else case.data.absolute())
        told["interventions"] = case.interventions and str(case.interventions.absolute())
        remember(out / DAG_FIT, {"case": told, "own": own})
    target: dict[str, Any] = {"prior": case.prior(), "temperature": case.power()}
    pace: dict[str, Any]
    pace = {"updates": updates} if minutes is None else {"minutes": _FITTING * minutes}
    found = train(
        table,
        **target,
        candidates=candidates,
        rule=chosen,
        **pace,
        seed=seed,
        seeds=seeds,
        samples=samples,
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
    if count <= EXACT:
        exact = exact_posterior(table, **target)
        summary["distance_to_exact"] = found.errors(exact)
        verdict = judge_by_exact(found, exact)
    else:
        if minutes is not None:
            spent = (time.perf_counter() - started) / 60
            evidence = max(_LEAST, (1 - _WRITING) * minutes - spent)
        verdict, summary["trust"] = _judge(found, table, target, evidence, seed, voice)
    summary["verdict"] = verdict._asdict()
    about = case.summary(table)
    about["options"] |= {name: own[name] for name in own if name != "samples"}
    about["command"] = spelled("dag fit", case, own | {"out": out})
    draws = found.draws
    keep_samples(out, draws.graphs, draws.log_rewards, found.names, draws.log_weights)
    told = write(out, found, draws.graphs, law(found) | summary | about, table, voice)
    voice.say(
        *how_it_went(found, summary),
        f"edges, paths, Markov blankets, samples and a picture are in {out}",
        str(verdict),
    )
    voice.tell(told | {"out": out, "report": tell_page(out, voice, name=PAGE)})


def _judge(
    found: "SampledPosterior",
    table: "Data",
    target: dict[str, Any],
    minutes: float | None,
    seed: int,
    voice: Voice,
) -> "tuple[Verdict, dict[str, float]]":
    """Beside chains that had no part in the training."""
    from ..dag import Candidates, Weights, judge, run_chains, score_for

    local = found.target
    if not isinstance(local, Candidates):
        local = Candidates.of(Weights.of(table, score_for(table, None), **target))
    chains = run_chains(local, minutes=minutes, seed=seed + _EVIDENCE, progress=voice.speaks)
    return judge(found, chains)


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
