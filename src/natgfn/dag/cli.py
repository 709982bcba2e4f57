"""`natgfn dag`: from a table of observations to a posterior over graphs."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import NatgfnError

app = typer.Typer(
    help="Bayesian structure learning: which variables cause which.", no_args_is_help=True
)


@app.callback()
def _group() -> None:
    """Keeps `exact` a command by its name while it is the only one."""


@app.command(epilog="For example: natgfn dag exact sachs --log --temperature paper --out sachs")
def exact(
    data: Annotated[
        Path, typer.Argument(help="A CSV file with names in its first line, or sachs, our example.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("dag"),
    forbid: Annotated[
        list[str] | None, typer.Option(metavar="A->B", help="An edge that no graph has.")
    ] = None,
    require: Annotated[
        list[str] | None, typer.Option(metavar="A->B", help="An edge that every graph has.")
    ] = None,
    discrete: Annotated[bool, typer.Option(help="Values are levels; text is welcome.")] = False,
    log: Annotated[bool, typer.Option(help="Take natural logarithms first.")] = False,
    standardise: Annotated[bool, typer.Option(help="Give columns mean 0 and variance 1.")] = True,
    temperature: Annotated[
        str, typer.Option(help="Divides the score: 1 is the posterior, paper is sqrt(rows).")
    ] = "1",
    edge_penalty: Annotated[
        float | None, typer.Option(help="For each edge; 0, or 0.5 at temperature paper.")
    ] = None,
    max_parents: Annotated[int | None, typer.Option(help="The most parents of a variable.")] = None,
) -> None:
    """The exact posterior: probabilities of edges, paths and Markov blankets, and a picture."""
    from . import data as tables
    from . import graphs
    from .exact import exact_posterior
    from .layers import memory
    from .posterior import SAMPLES
    from .priors import PAPER_PENALTY, Prior
    from .subsets import gigabytes

    heat = _temperature(temperature)
    if edge_penalty is None:
        edge_penalty = PAPER_PENALTY if heat == "paper" else 0.0
    prior = Prior(
        edge_penalty=edge_penalty,
        max_parents=max_parents,
        require=tuple(map(_edge, require or ())),
        forbid=tuple(map(_edge, forbid or ())),
    )
    packaged = str(data) == "sachs" and not data.exists()
    table = tables.load(
        tables.sachs() if packaged else data, discrete=discrete, log=log, standardise=standardise
    )
    rows, count = table.values.shape
    typer.echo(f"{rows} rows, {count} variables; {gigabytes(memory(count))} of memory")
    found = exact_posterior(table, prior=prior, temperature=heat, progress=True)
    samples = found.sample(SAMPLES)
    frames = {
        "edge_marginals": found.edge_marginals,
        "path_marginals": found.frame(graphs.ancestors(samples).mean(axis=0)),
        "markov_blankets": found.frame(graphs.markov_blankets(samples).mean(axis=0)),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        frame.to_csv(out / f"{name}.csv")
    found.plot(out / "posterior.png")
    summary: dict[str, Any] = {
        "log_z_relative_to_empty": found.log_z,
        "expected_edges": found.expected_edges,
        "expected_log_reward": found.expected_log_reward,
        "accuracy": found.accuracy,
        "samples_for_paths_and_blankets": SAMPLES,
        "rows": rows,
        "variables": list(table.names),
        "options": {
            "data": str(data),
            "score": "BDeu" if discrete else "BGe",
            "discrete": discrete,
            "log": log,
            "standardise": standardise and not discrete,
            "temperature": heat,
            "edge_penalty": edge_penalty,
            "max_parents": max_parents,
            "require": ["->".join(edge) for edge in prior.require],
            "forbid": ["->".join(edge) for edge in prior.forbid],
        },
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    typer.echo(
        f"log Z {found.log_z:.6g} relative to the empty graph, E|G| {found.expected_edges:.4g}, "
        f"E[log R] {found.expected_log_reward:.6g}; exact to {found.accuracy:.0e}"
    )
    typer.echo(f"edges, paths, Markov blankets and a picture are in {out}")


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
