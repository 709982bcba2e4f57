"""`natgfn dag`: from a table of observations to a posterior over graphs."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import NatgfnError
from ..memory import gigabytes
from .case import DAG_FIT, remember, spelled, takes
from .files import make_folder, named, picture
from .interrupt import interruptible
from .report import tell_page
from .voice import Voice

if TYPE_CHECKING:
    import numpy as np

    from ..dag import Data, ExactPosterior, Prior, SampledPosterior
    from ..optim import AbstractRule

app = typer.Typer(
    help="Bayesian structure learning: which variables cause which.", no_args_is_help=True
)

EXACT = 14
"""The most variables for which `fit` also computes the exact posterior: half a minute."""


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

    def table(self) -> "Data":
        from .. import dag

        packaged = str(self.data) == "sachs" and not self.data.exists()
        return dag.load(
            dag.sachs() if packaged else self.data,
            discrete=self.discrete,
            log=self.log,
            standardise=self.standardise,
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
        }
        return {"rows": len(table.values), "variables": list(table.names), "options": options}


def _edge(text: str) -> tuple[str, str]:
    source, arrow, target = (part.strip() for part in text.partition("->"))
    if not (source and arrow and target):
        raise NatgfnError(f"expected an edge such as A->B, got {text!r}; quote it: 'A->B'")
    return source, target


Out = Annotated[Path, typer.Option(help="The folder to write to.", parser=named, metavar="FOLDER")]


@app.command(epilog="For example: natgfn dag exact sachs --log --temperature paper --out sachs")
@takes(Case, Voice)
def exact(case: Case, voice: Voice, out: Out = Path("dag")) -> None:
    """The exact posterior: probabilities of edges, paths and Markov blankets, and a picture."""
    from ..dag import SAMPLES, exact_memory, exact_posterior

    table = case.table()
    prior, power = case.prior(), case.power()
    make_folder(out)
    voice.say(f"{_size(table)}; {gigabytes(exact_memory(len(table.names)))} of memory")
    found = exact_posterior(table, prior=prior, temperature=power, progress=voice.speaks)
    about = {"accuracy": found.accuracy, "samples_for_paths_and_blankets": SAMPLES}
    about |= case.summary(table) | {"command": spelled("dag exact", case, {"out": out})}
    told = _write(out, found, found.sample(SAMPLES), about, voice)
    voice.say(
        f"{_headline(found)}; exact to {found.accuracy:.0e}",
        f"edges, paths, Markov blankets and a picture are in {out}",
    )
    voice.tell(told | {"out": out, "report": tell_page(out, voice)})


@app.command(epilog="For example: natgfn dag fit sachs --log --out sachs")
@takes(Case, Voice)
def fit(
    case: Case,
    voice: Voice,
    out: Out = Path("dag"),
    updates: Annotated[int, typer.Option(help="Of the sampler.")] = 4_000,
    seed: Annotated[int, typer.Option(help="Of the parameters and of all draws.")] = 0,
    seeds: Annotated[int, typer.Option(help="Samplers, trained one after the other.")] = 1,
    samples: Annotated[int, typer.Option(help="Graphs to draw in the end.")] = 10_000,
    rule: Annotated[
        str,
        typer.Option(
            help="adam, natural, or any rule of natgfn list with its settings, as in "
            "'{name=\"Adam\", rate=3e-4}'."
        ),
    ] = "adam",
) -> None:
    """Train a sampler of graphs, and say how far it is from the posterior."""
    own = {"updates": updates, "seed": seed, "seeds": seeds, "samples": samples, "rule": rule}
    with interruptible(out, f"natgfn resume {out}"):
        _fit(case, out, voice, **own, resume=False)


def resume_fit(folder: Path, voice: Voice) -> None:
    """Go on with an interrupted `natgfn dag fit`."""
    try:
        told = json.loads((folder / DAG_FIT).read_text())
        case, own = told["case"], told["own"]
        case = Case(**case | {"data": Path(case["data"])})
    except (ValueError, KeyError, TypeError) as error:
        raise NatgfnError(f"{folder / DAG_FIT} does not describe a fit: {error}") from error
    _fit(case, folder, voice, **own, resume=True)


def _fit(
    case: Case,
    out: Path,
    voice: Voice,
    *,
    updates: int,
    seed: int,
    seeds: int,
    samples: int,
    rule: str,
    resume: bool,
) -> None:
    import numpy as np

    from ..dag import TABULATED, exact_posterior, fit_memory
    from ..dag import fit as train

    chosen, table = _rule(rule), case.table()
    count = len(table.names)
    way = "tabulated" if count <= TABULATED else "computed for each graph"
    voice.say(f"{_size(table)}; local weights are {way}; {gigabytes(fit_memory(count))} of memory")
    own = {"updates": updates, "seed": seed, "seeds": seeds, "samples": samples, "rule": rule}
    if not resume:
        told = asdict(case)
        told["data"] = str(case.data if str(case.data) == "sachs" else case.data.absolute())
        remember(out / DAG_FIT, {"case": told, "own": own})
    started = time.perf_counter()
    target: dict[str, Any] = {"prior": case.prior(), "temperature": case.power()}
    found = train(
        table,
        **target,
        rule=chosen,
        updates=updates,
        seed=seed,
        seeds=seeds,
        samples=samples,
        out=out,
        resume=resume,
        progress=voice.speaks,
    )
    summary: dict[str, Any] = {
        "training_seconds": round(time.perf_counter() - started, 1),
        "samples": len(found.draws.graphs),
        "quality": found.quality(),
    }
    if count <= EXACT:
        summary["distance_to_exact"] = found.errors(exact_posterior(table, **target))
    about = case.summary(table)
    about["options"] |= {"updates": updates, "seed": seed, "seeds": seeds, "rule": rule}
    about["command"] = spelled("dag fit", case, own | {"out": out})
    np.savez_compressed(
        out / "samples.npz",
        graphs=found.draws.graphs,
        log_weights=found.draws.log_weights,
        log_rewards=found.draws.log_rewards,
        names=np.array(found.names),
    )
    told = _write(out, found, found.draws.graphs, summary | about, voice)
    voice.say(
        *_how_it_went(found, summary),
        f"edges, paths, Markov blankets, samples and a picture are in {out}",
    )
    voice.tell(told | {"out": out, "report": tell_page(out, voice)})


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
        yield "that size is the only judge: the exact posterior of so many is not computed"


def _rule(text: str) -> "AbstractRule | None":
    from ..optim import SampleSpace
    from ..training import named

    if text == "adam":
        return None  # with rates that suit the table
    return SampleSpace.network() if text == "natural" else named("rule", text)


def _size(table: "Data") -> str:
    rows, count = table.values.shape
    return f"{rows} rows, {count} variables"


def _write(
    out: Path,
    found: "ExactPosterior | SampledPosterior",
    samples: "np.ndarray",
    summary: dict[str, Any],
    voice: Voice,
) -> dict[str, Any]:
    """Tables, a summary, which is returned, and a picture; `samples` are for paths and blankets."""
    from ..dag import graphs
    from ..training import cell, versions

    frames = {
        "edge_marginals": found.edge_marginals,
        "path_marginals": found.frame(graphs.ancestors(samples).mean(axis=0)),
        "markov_blankets": found.frame(graphs.markov_blankets(samples).mean(axis=0)),
    }
    for name, frame in frames.items():
        frame.rename(index=cell, columns=cell).to_csv(out / f"{name}.csv")
    first = {
        "log_z_relative_to_empty": found.log_z,
        "expected_edges": found.expected_edges,
        "expected_log_reward": found.expected_log_reward,
    }
    told = first | summary | {"versions": versions()}
    (out / "summary.json").write_text(json.dumps(told, indent=2) + "\n")
    picture(voice, lambda: found.plot(out / "posterior.png"))
    return told


def _headline(found: "ExactPosterior | SampledPosterior") -> str:
    return (
        f"log Z {found.log_z:.6g} relative to the empty graph, E|G| {found.expected_edges:.4g}, "
        f"E[log R] {found.expected_log_reward:.6g}"
    )
