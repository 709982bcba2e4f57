r"""Sachs: `tab:sachs_fisher_main` and its figures, with the exact posterior beside them.

853 measurements of 11 phosphoproteins, logarithms standardised, BGe to the power $N^{-1/2}$ with a
penalty of 0.5 an edge. Adam trains for 4,000 updates; exact copies go on for 500 with each rule,
and a fixed probe of 256 trajectories measures progress. The paper's network is the Transformer;
the same protocol with a small MLP takes minutes instead of hours. The consensus graph is a
reference, not a truth: observational data do not identify directions.

Not in the paper: K-FAC in place of conjugate gradients, under the same safeguards, and our
sample-space step with its own, not these. It moves log Z by Adam at 0.1, the paper's methods by
gradient descent at 1e-3, so Adam is also run with log Z at 0.1, at two rates. The exact posterior
is that of the same target.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from natgfn.dag import CONSENSUS, PAPER_PENALTY, BGe, Prior, adjacency, load, log_weights, sachs

from ..printed import PRINTED, Measured
from . import continuation_page
from .continuation import Case, Scale, run_all

SCALES = {
    "smoke": (4, 1, Scale(warm_up=20, updates=10, every=5, batch=16, probe=16, samples=100)),
    "paper": (11, 3, Scale()),
}
"""How many of the proteins, how many seeds, and how much to run."""

PAPER = PRINTED["tab:sachs_fisher_main"]


def cases(scale: str, seeds: int | None) -> list[Case]:
    """The same target for every seed."""
    count, usual, _ = SCALES[scale]
    table = load(sachs().iloc[:, :count], log=True)
    weights = log_weights(table, BGe(), Prior(edge_penalty=PAPER_PENALTY), "paper")
    edges = [edge for edge in CONSENSUS if set(edge) <= set(table.names)]
    truth = adjacency(table.names, edges)
    return [
        Case("", seed, table.names, weights, truth) for seed in range(2001, 2001 + (seeds or usual))
    ]


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
    return continuation_page.figures(results, out, stem, "consensus")
