r"""Graphs of which the truth is known: `tab:synthetic_fisher_appendix` and its figure.

Ten variables, an Erdos-Renyi graph with about as many edges, linear effects with coefficients from
0.5 to 2 of either sign, unit Gaussian noise, 100 observations. Drawn from NumPy's default generator
with the seeds 0, 1, 2, the graphs have 7, 8 and 11 edges, as the paper says of its own; the order
of what is drawn after them is our guess. The target and the protocol are those of `dag-sachs`.

The paper does not say whether the data are standardised: here they are not, and, as a variant,
they are.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from natgfn.dag import PAPER_PENALTY, BGe, Prior, load, log_weights

from ..printed import PRINTED, Measured
from . import continuation_page
from .continuation import Case, Scale, run_all

SCALES = {
    "smoke": (4, 1, Scale(warm_up=20, updates=10, every=5, batch=16, probe=16, samples=100)),
    "paper": (10, 3, Scale()),
}
"""How many variables, how many seeds, and how much to run."""

ROWS, SIZES = 100, (0.5, 2.0)
"""Of the table, and the range of the sizes of effects."""

VARIANTS = {"as drawn": False, "standardised": True}

PAPER = PRINTED["tab:synthetic_fisher_appendix"]


def draw_data(
    size: int, seed: int, rows: int = ROWS, sizes: tuple[float, float] = SIZES
) -> tuple[Int[np.ndarray, "d d"], Float[np.ndarray, "rows d"]]:
    """A graph with about as many edges as variables, and observations along it."""
    rng = np.random.default_rng(seed)
    edges = np.triu(rng.random((size, size)) < 2 / (size - 1), 1)
    order = rng.permutation(size)
    edges = edges[np.ix_(order, order)].astype(np.int64)
    return edges, observe(edges, rng, rows, sizes)


def observe(
    edges: Int[np.ndarray, "d d"],
    rng: np.random.Generator,
    rows: int = ROWS,
    sizes: tuple[float, float] = SIZES,
) -> Float[np.ndarray, "rows d"]:
    """Observations of a linear model along a graph, with effects of sizes in that range."""
    count = len(edges)
    effects = edges * rng.uniform(*sizes, (count, count)) * rng.choice([-1, 1], (count, count))
    noise = rng.normal(size=(rows, count))
    return noise @ np.linalg.inv(np.eye(count) - effects)


def cases(scale: str, seeds: int | None) -> list[Case]:
    """Every graph, with the data as drawn first."""
    size, usual, _ = SCALES[scale]
    prior, found = Prior(edge_penalty=PAPER_PENALTY), []
    for variant, standardise in VARIANTS.items():
        for seed in range(seeds or usual):
            truth, values = draw_data(size, seed)
            table = load(values, standardise=standardise)
            weights = log_weights(table, BGe(), prior, "paper")
            found.append(Case(variant, 1000 + seed, table.names, weights, truth))
    return found


def run(
    scale: str,
    seeds: int | None,
    work: Path,
    only: Sequence[str] = (),
    earlier: Mapping[str, Any] | None = None,
    *,
    checkpoints: Path,
) -> dict[str, Any]:
    """See `continuation.run_all`."""
    return run_all(cases(scale, seeds), SCALES[scale][-1], work, only, earlier, checkpoints)


def page(results: Mapping[str, Any]) -> str:
    return continuation_page.page(results, PAPER)


def measured(results: Mapping[str, Any], label: str) -> list[Measured]:
    return continuation_page.measured(results, PRINTED[label])


def paper_claims(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    return continuation_page.paper_claims(results, PAPER)


def figures(results: Mapping[str, Any], out: Path, stem: str) -> list[Path]:
    return continuation_page.figures(results, out, stem, "generating graph")
