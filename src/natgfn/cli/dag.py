"""`natgfn dag`: from a table of observations to a posterior over graphs."""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from ..errors import NatgfnError
from ..memory import gigabytes
from .case import DAG_FIT, remember, spelled, takes
from .files import make_folder, named, picture
from .interrupt import interruptible
from .report import tell_page
from .voice import Voice

if TYPE_CHECKING:
    import numpy as np

    from ..dag import AbstractPosterior, Data, ExactPosterior, Prior, SampledPosterior, Verdict
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


_SHOWN = 0.01
"""The least probability of an edge in the files for other programs."""


@dataclass(frozen=True)
class Case:
    """A table and its target, as options of a command."""

    data: Annotated[
        Path, typer.Argument(help="A CSV file with names in its first line, or sachs, our example.")
    ]
    forbid: Annotated[
        list[str] | None, typer.Option(metavar="A->B", help="An edge that no graph has.")
    ] = None
    require: Annotated[
        list[str] | None, typer.Option(metavar="A->B", help="An edge that every graph has.")
    ] = None
    discrete: Annotated[bool, typer.Option(help="Values are levels; text is welcome.")] = False
    log: Annotated[bool, typer.Option(help="Take natural logarithms first.")] = False
    standardise: Annotated[bool, typer.Option(help="Give columns mean 0 and variance 1.")] = True
    temperature: Annotated[
        str,
        typer.Option(
            help="The power of the likelihood: 1 is the posterior, paper is 1/sqrt(rows)."
        ),
    ] = "1"
    edge_penalty: Annotated[
        float | None, typer.Option(help="For each edge; 0, or 0.5 at temperature paper.")
    ] = None
    max_parents: Annotated[int | None, typer.Option(help="The most parents of a variable.")] = None
    interventions: Annotated[
        Path | None,
        typer.Option(
            help="A CSV file of one column: for each row, the variables that were set from "
            "outside, separated by semicolons."
        ),
    ] = None

    def table(self) -> "Data":
        from .. import dag

        packaged = str(self.data) == "sachs" and not self.data.exists()
        return dag.load(
            dag.sachs() if packaged else self.data,
            discrete=self.discrete,
            log=self.log,
            standardise=self.standardise,
            interventions=self.interventions,
        )

    def prior(self) -> "Prior":
        from ..dag import PAPER_PENALTY, Prior

        default = PAPER_PENALTY if self.temperature == "paper" else 0.0
        return Prior(
            edge_penalty=default if self.edge_penalty is None else self.edge_penalty,
            max_parents=self.max_parents,
            require=tuple(map(_edge, self.require or ())),
            forbid=tuple(map(_edge, self.forbid or ())),
        )

    def power(self) -> float | Literal["paper"]:
        if self.temperature == "paper":
            return "paper"
        try:
            return float(self.temperature)
        except ValueError as error:
            raise NatgfnError(
                f"temperature must be a number or paper, got {self.temperature!r}"
            ) from error

    def summary(self, table: "Data") -> dict[str, Any]:
        """What the target was, for `summary.json`."""
        prior = self.prior()
        options = {
            "data": str(self.data),
            "score": "BDeu" if self.discrete else "BGe",
            "discrete": self.discrete,
            "log": self.log,
            "standardise": self.standardise and not self.discrete,
            "temperature": self.power(),
            "edge_penalty": prior.edge_penalty,
            "max_parents": prior.max_parents,
            "require": ["->".join(edge) for edge in prior.require],
            "forbid": ["->".join(edge) for edge in prior.forbid],
            "interventions": None if self.interventions is None else str(self.interventions),
        }
        return {"rows": len(table.values), "variables": list(table.names), "options": options}


def _edge(text: str) -> tuple[str, str]:
    source, arrow, target = (part.strip() for part in text.partition("->"))
    if not (source and arrow and target):
        raise NatgfnError(f"expected an edge such as A->B, got {text!r}; quote it: 'A->B'")
    return source, target


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
    told = _write(out, found, found.sample(SAMPLES), _law(found) | about, table, voice)
    voice.say(
        _headline(found),
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
    _keep_samples(out, graphs, log_rewards, found.names)
    told = _write(out, found, graphs, about, table, voice)
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
    from ..dag import TABULATED, exact_posterior, fit_memory, judge_by_exact, usual_number
    from ..dag import fit as train
    from ..training import RECORD, Record

    started = time.perf_counter()
    chosen, table = _rule(rule), case.table()
    count = len(table.names)
    number = min(candidates or usual_number(count, table.discrete), count - 1)
    way = "all sets of parents" if count <= TABULATED else f"parents among {number} candidates"
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
    _keep_samples(out, draws.graphs, draws.log_rewards, found.names, draws.log_weights)
    told = _write(out, found, draws.graphs, _law(found) | summary | about, table, voice)
    voice.say(
        *_how_it_went(found, summary),
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


def _keep_samples(
    out: Path,
    graphs: "np.ndarray",
    log_rewards: "np.ndarray",
    names: tuple[str, ...],
    log_weights: "np.ndarray | None" = None,
) -> None:
    """Graphs with their log-rewards, and the importance weights of those of a sampler."""
    import numpy as np

    arrays: dict[str, Any] = {
        "graphs": graphs,
        "log_rewards": log_rewards,
        "names": np.array(names),
    }
    if log_weights is not None:
        arrays["log_weights"] = log_weights
    np.savez_compressed(out / "samples.npz", allow_pickle=False, **arrays)


def _how_it_went(found: "SampledPosterior", summary: dict[str, Any]) -> Iterator[str]:
    yield _headline(found)
    quality = summary["quality"]
    share = quality["effective_sample_share"]
    yield f"effective sample size of importance-corrected estimates: {share:.1%} of the draws"
    if "largest_difference_between_seeds" in quality:
        apart = quality["largest_difference_between_seeds"]
        yield f"seeds differ in the probability of an edge by {apart:.2g} at most"
    if found.rejected:
        yield f"{found.rejected} updates were not finite, and were rejected"
    if "distance_to_exact" in summary:
        error = summary["distance_to_exact"]["largest_error_of_a_marginal"]
        yield f"no probability of an edge is further than {error:.2g} from the exact one"
    else:
        trust = summary["trust"]
        yield (
            f"log Z is between {trust['elbo']:.6g} (ELBO) and {trust['eubo']:.6g} (EUBO); "
            f"edges differ from chains by {trust['mean_difference_from_chains']:.2g} on average, "
            f"{trust['largest_difference_from_chains']:.2g} at most"
        )


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


def _write(
    out: Path,
    found: "AbstractPosterior",
    samples: "np.ndarray",
    summary: dict[str, Any],
    table: "Data",
    voice: Voice,
) -> dict[str, Any]:
    """Tables, a summary, which is returned, and a picture.

    Probabilities of paths and blankets, classes and effects are those of `samples`.
    """
    from ..dag import effects_of, graphs, write_dot, write_graphml
    from ..training import cell, versions

    frames = {
        "edge_marginals": found.edge_marginals,
        "path_marginals": found.frame(graphs.ancestors(samples).mean(axis=0)),
        "markov_blankets": found.frame(graphs.markov_blankets(samples).mean(axis=0)),
    }
    for name, frame in frames.items():
        frame.rename(index=cell, columns=cell).to_csv(out / f"{name}.csv")
    for suffix, write in (("graphml", write_graphml), ("dot", write_dot)):
        write(found.graph(_SHOWN), out / f"posterior.{suffix}")
    told = summary | _best(found, samples) | {"versions": versions()}
    (out / "summary.json").write_text(json.dumps(told, indent=2) + "\n")
    if not table.discrete:
        try:
            effects = effects_of(samples, table).tidy()
            names = {end: effects[end].map(cell) for end in ("cause", "effect")}
            effects.assign(**names).to_csv(out / "effects.csv", index=False)
        except NatgfnError as error:
            voice.say(f"no effects.csv: {error}")
    picture(voice, lambda: found.plot(out / "posterior.png"))
    return told


def _best(found: "AbstractPosterior", samples: "np.ndarray") -> dict[str, Any]:
    """The most probable graph, and the most probable Markov equivalence class among `samples`."""
    import numpy as np

    from ..dag import graphs

    def spelt(edges: np.ndarray, between: str) -> list[str]:
        return [between.join(found.names[end] for end in edge) for edge in np.argwhere(edges)]

    (graph,), (probability,) = found.top(1)
    both, share = graphs.most_frequent_class(samples)
    return {
        "most_probable_graph": {"probability": float(probability), "edges": spelt(graph, "->")},
        "most_probable_class": {
            "share_of_draws": share,
            "one_way": spelt(both & ~both.T, "->"),
            "either_way": spelt(np.triu(both & both.T), "--"),
        },
    }


def _law(found: "ExactPosterior | SampledPosterior") -> dict[str, float]:
    """What a summary starts with."""
    return {
        "log_z_relative_to_empty": found.log_z,
        "expected_edges": found.expected_edges,
        "expected_log_reward": found.expected_log_reward,
    }


def _headline(found: "ExactPosterior | SampledPosterior") -> str:
    return (
        f"log Z {found.log_z:.6g} relative to the empty graph, E|G| {found.expected_edges:.4g}, "
        f"E[log R] {found.expected_log_reward:.6g}"
    )
