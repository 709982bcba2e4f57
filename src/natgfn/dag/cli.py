"""`natgfn dag`: from a table of observations to a posterior over graphs."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from ..errors import NatgfnError

if TYPE_CHECKING:
    import numpy as np

    from .data import Data
    from .exact import ExactPosterior
    from .priors import Prior
    from .sampler import SampledPosterior

app = typer.Typer(
    help="Bayesian structure learning: which variables cause which.", no_args_is_help=True
)

Table = Annotated[
    Path, typer.Argument(help="A CSV file with names in its first line, or sachs, our example.")
]
Out = Annotated[Path, typer.Option(help="The folder to write to.")]
Forbid = Annotated[
    list[str] | None, typer.Option(metavar="A->B", help="An edge that no graph has.")
]
Require = Annotated[
    list[str] | None, typer.Option(metavar="A->B", help="An edge that every graph has.")
]
Discrete = Annotated[bool, typer.Option(help="Values are levels; text is welcome.")]
Log = Annotated[bool, typer.Option(help="Take natural logarithms first.")]
Standardise = Annotated[bool, typer.Option(help="Give columns mean 0 and variance 1.")]
Temperature = Annotated[
    str,
    typer.Option(help="The power of the likelihood: 1 is the posterior, paper is 1/sqrt(rows)."),
]
EdgePenalty = Annotated[
    float | None, typer.Option(help="For each edge; 0, or 0.5 at temperature paper.")
]
MaxParents = Annotated[int | None, typer.Option(help="The most parents of a variable.")]

EXACT = 14
"""The most variables for which `fit` also computes the exact posterior: half a minute."""


@app.command(epilog="For example: natgfn dag exact sachs --log --temperature paper --out sachs")
def exact(
    data: Table,
    out: Out = Path("dag"),
    forbid: Forbid = None,
    require: Require = None,
    discrete: Discrete = False,
    log: Log = False,
    standardise: Standardise = True,
    temperature: Temperature = "1",
    edge_penalty: EdgePenalty = None,
    max_parents: MaxParents = None,
) -> None:
    """The exact posterior: probabilities of edges, paths and Markov blankets, and a picture."""
    from .exact import exact_posterior
    from .layers import memory
    from .posterior import SAMPLES
    from .subsets import gigabytes

    prior = _prior(temperature, edge_penalty, max_parents, require, forbid)
    case = _load(data, prior, temperature, discrete=discrete, log=log, standardise=standardise)
    typer.echo(f"{case.size}; {gigabytes(memory(len(case.table.names)))} of memory")
    found = exact_posterior(case.table, prior=prior, temperature=case.temperature, progress=True)
    _write(
        out,
        found,
        found.sample(SAMPLES),
        {"accuracy": found.accuracy, "samples_for_paths_and_blankets": SAMPLES, **case.summary},
    )
    typer.echo(f"{_headline(found)}; exact to {found.accuracy:.0e}")
    typer.echo(f"edges, paths, Markov blankets and a picture are in {out}")


@app.command(epilog="For example: natgfn dag fit sachs --log --out sachs")
def fit(
    data: Table,
    out: Out = Path("dag"),
    forbid: Forbid = None,
    require: Require = None,
    discrete: Discrete = False,
    log: Log = False,
    standardise: Standardise = True,
    temperature: Temperature = "1",
    edge_penalty: EdgePenalty = None,
    max_parents: MaxParents = None,
    updates: Annotated[int | None, typer.Option(help="Of the sampler; 4000 by default.")] = None,
    seed: Annotated[int, typer.Option(help="Of the parameters and of all draws.")] = 0,
) -> None:
    """Train a sampler of graphs, and say how far it is from the posterior."""
    import numpy as np

    from .exact import exact_posterior
    from .fit import UPDATES, memory
    from .fit import fit as train
    from .subsets import gigabytes
    from .target import TABULATED

    prior = _prior(temperature, edge_penalty, max_parents, require, forbid)
    case = _load(data, prior, temperature, discrete=discrete, log=log, standardise=standardise)
    updates = UPDATES if updates is None else updates
    count = len(case.table.names)
    way = "tabulated" if count <= TABULATED else "computed for each graph"
    typer.echo(f"{case.size}; local weights are {way}; {gigabytes(memory(count))} of memory")
    out.mkdir(parents=True, exist_ok=True)  # before the work: a name that cannot be used
    started = time.perf_counter()
    found = train(case.table, prior=prior, temperature=case.temperature, updates=updates, seed=seed)
    summary: dict[str, Any] = {
        "training_seconds": round(time.perf_counter() - started, 1),
        "samples": len(found.draws.graphs),
        "quality": found.quality(),
    }
    if count <= EXACT:
        known = exact_posterior(case.table, prior=prior, temperature=case.temperature)
        summary["distance_to_exact"] = found.errors(known)
    case.summary["options"] |= {"updates": updates, "seed": seed}
    _write(out, found, found.draws.graphs, summary | case.summary)
    np.savez_compressed(
        out / "samples.npz",
        graphs=found.draws.graphs,
        log_weights=found.draws.log_weights,
        log_rewards=found.draws.log_rewards,
        names=np.array(found.names),
    )
    typer.echo(_headline(found))
    share = summary["quality"]["effective_sample_share"]
    typer.echo(f"effective sample size of importance-corrected estimates: {share:.1%} of the draws")
    if found.rejected:
        typer.echo(f"{found.rejected} updates were not finite, and were rejected")
    if "distance_to_exact" in summary:
        error = summary["distance_to_exact"]["largest_error_of_a_marginal"]
        typer.echo(f"no probability of an edge is further than {error:.2g} from the exact one")
    else:
        typer.echo("that size is the only judge: the exact posterior of so many is not computed")
    typer.echo(f"edges, paths, Markov blankets, samples and a picture are in {out}")


class _Case(NamedTuple):
    """A table and its target."""

    table: "Data"
    temperature: float | Literal["paper"]
    summary: dict[str, Any]

    @property
    def size(self) -> str:
        rows, count = self.table.values.shape
        return f"{rows} rows, {count} variables"


def _prior(
    temperature: str,
    edge_penalty: float | None,
    max_parents: int | None,
    require: list[str] | None,
    forbid: list[str] | None,
) -> "Prior":
    from .priors import PAPER_PENALTY, Prior

    default = PAPER_PENALTY if temperature == "paper" else 0.0
    return Prior(
        edge_penalty=default if edge_penalty is None else edge_penalty,
        max_parents=max_parents,
        require=tuple(map(_edge, require or ())),
        forbid=tuple(map(_edge, forbid or ())),
    )


def _load(
    data: Path, prior: "Prior", temperature: str, *, discrete: bool, log: bool, standardise: bool
) -> _Case:
    from . import data as tables

    power = _temperature(temperature)
    packaged = str(data) == "sachs" and not data.exists()
    table = tables.load(
        tables.sachs() if packaged else data, discrete=discrete, log=log, standardise=standardise
    )
    options = {
        "data": str(data),
        "score": "BDeu" if discrete else "BGe",
        "discrete": discrete,
        "log": log,
        "standardise": standardise and not discrete,
        "temperature": power,
        "edge_penalty": prior.edge_penalty,
        "max_parents": prior.max_parents,
        "require": ["->".join(edge) for edge in prior.require],
        "forbid": ["->".join(edge) for edge in prior.forbid],
    }
    summary = {"rows": len(table.values), "variables": list(table.names), "options": options}
    return _Case(table, power, summary)


def _write(
    out: Path,
    found: "ExactPosterior | SampledPosterior",
    samples: "np.ndarray",
    summary: dict[str, Any],
) -> None:
    """Tables, a picture and a summary; `samples` are for paths and Markov blankets."""
    from . import graphs

    frames = {
        "edge_marginals": found.edge_marginals,
        "path_marginals": found.frame(graphs.ancestors(samples).mean(axis=0)),
        "markov_blankets": found.frame(graphs.markov_blankets(samples).mean(axis=0)),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        frame.to_csv(out / f"{name}.csv")
    found.plot(out / "posterior.png")
    first = {
        "log_z_relative_to_empty": found.log_z,
        "expected_edges": found.expected_edges,
        "expected_log_reward": found.expected_log_reward,
    }
    (out / "summary.json").write_text(json.dumps(first | summary, indent=2) + "\n")


def _headline(found: "ExactPosterior | SampledPosterior") -> str:
    return (
        f"log Z {found.log_z:.6g} relative to the empty graph, E|G| {found.expected_edges:.4g}, "
        f"E[log R] {found.expected_log_reward:.6g}"
    )


def _edge(text: str) -> tuple[str, str]:
    source, arrow, target = (part.strip() for part in text.partition("->"))
    if not (source and arrow and target):
        raise NatgfnError(f"expected an edge such as A->B, got {text!r}; quote it: 'A->B'")
    return source, target


def _temperature(text: str) -> float | Literal["paper"]:
    if text == "paper":
        return text
    try:
        return float(text)
    except ValueError as error:
        raise NatgfnError(f"temperature must be a number or paper, got {text!r}") from error
