"""Whether the verdict on a sampler of graphs is right, where the exact posterior can tell.

Samplers of small tables are trained shortly, some of them spoiled in ways that happen, and each is
judged beside chains of its own (`dag.judge`). Their true errors are known, and no limit of the
verdict was chosen on these tables.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from natgfn.dag import (
    BGe,
    Candidates,
    Dags,
    Data,
    Prior,
    SampledPosterior,
    Weights,
    exact_posterior,
    judge,
    known_partitions,
    load,
    log_weights,
    posterior_of,
    run_chains,
    setup_of,
    wide_setup,
)
from natgfn.optim import Adam
from natgfn.policies import Network
from natgfn.sampling import OnPolicy
from natgfn.sources import Fresh
from natgfn.training import numbers, plain, run

from .measure import Measurement
from .pages import as_rows, circumstances, limits_table, progress, table, write

WRONG, GOOD = 0.05, 0.02
"""True worst errors of an edge: none that is larger may be called agreeing, and a sampler of none
that is larger is good."""

BATCH, DESIGN = 64, Network(64, 2)


class Table(NamedTuple):
    """Simulated observations of a linear model along a random graph."""

    variables: int
    rows: int
    strength: float
    """Of effects: their sizes are between half of it and all, of either sign; noise has one."""
    seed: int


class Case(NamedTuple):
    """A sampler, and how it is spoiled, if it is."""

    table: Table
    regime: str
    """Graphs are built edge by edge (`edges`), or their root partitions are (`partitions`)."""
    updates: int
    seed: int
    spoiled: str = ""

    @property
    def name(self) -> str:
        size, rows, strength, _ = self.table
        return f"{size} variables, {rows} rows, effects to {strength:g}, seed {self.seed}"


class Effort(NamedTuple):
    """Steps of each chain in multiples of the variables, and graphs that are drawn."""

    sweeps: int
    draws: int


TOO_SHORT, TOO_FAST = "hardly trained", "rate too high"
SHARPENED, OTHER_ROWS = "trained on a sharpened law", "trained on other rows"
NO_MODE, ALONE = "trained without the most uncertain edge", "no exploration, no known graphs"
SPOILT = {
    TOO_SHORT: "thirty updates",
    TOO_FAST: "Adam at 0.1, a hundred times the usual rate",
    SHARPENED: "the likelihood was squared in training",
    OTHER_ROWS: "the table had other rows in training, of the same model",
    NO_MODE: "the edge whose probability is nearest to one half was forbidden in training",
    ALONE: "on policy, without mixing in uniform actions or what chains found, at ten times the "
    "usual rate",
}
"""What was done."""

_SMALL, _SMALL_STRONG = Table(6, 100, 0.6, 0), Table(6, 300, 1.5, 1)
_MEDIUM, _MEDIUM_STRONG = Table(8, 200, 0.6, 2), Table(8, 200, 1.5, 3)
_TEN, _TWELVE, _FOURTEEN = Table(10, 200, 0.8, 4), Table(12, 100, 0.8, 5), Table(14, 100, 0.6, 6)

CASES: tuple[Case, ...] = (
    *(Case(_SMALL, "edges", 1_500, seed) for seed in (0, 1)),
    Case(_SMALL, "edges", 30, 2, TOO_SHORT),
    Case(_SMALL, "edges", 1_500, 3, SHARPENED),
    Case(_SMALL, "partitions", 2_500, 0),
    *(Case(_SMALL_STRONG, "edges", 1_500, seed) for seed in (0, 1)),
    Case(_SMALL_STRONG, "edges", 1_500, 2, TOO_FAST),
    Case(_SMALL_STRONG, "edges", 1_500, 3, NO_MODE),
    *(Case(_SMALL_STRONG, "partitions", 2_500, seed) for seed in (0, 1)),
    *(Case(_MEDIUM, "edges", 1_500, seed) for seed in (0, 1)),
    Case(_MEDIUM, "edges", 1_500, 2, OTHER_ROWS),
    *(Case(_MEDIUM, "partitions", 2_500, seed) for seed in (0, 1)),
    Case(_MEDIUM, "partitions", 2_500, 2, SHARPENED),
    *(Case(_MEDIUM_STRONG, "partitions", 2_500, seed) for seed in (0, 1, 2)),
    Case(_MEDIUM_STRONG, "partitions", 2_500, 3, TOO_FAST),
    Case(_MEDIUM_STRONG, "partitions", 2_500, 4, NO_MODE),
    Case(_MEDIUM_STRONG, "partitions", 2_500, 5, ALONE),
    *(Case(_TEN, "partitions", 2_500, seed) for seed in (0, 1, 2)),
    Case(_TEN, "partitions", 2_500, 3, ALONE),
    *(Case(_TWELVE, "partitions", 2_500, seed) for seed in (0, 1)),
    Case(_FOURTEEN, "partitions", 2_500, 0),
)
FULL = Effort(sweeps=6_000, draws=10_000)

QUICK_CASES = (
    Case(Table(4, 60, 1.0, 0), "edges", 20, 0),
    Case(Table(4, 60, 1.0, 0), "partitions", 20, 1, SHARPENED),
)
QUICK = Effort(sweeps=64, draws=200)


def bench_verdicts(out: Path = Path("results"), quick: bool = False) -> int:
    """Judge thirty samplers; 0 if none agrees that is wrong. It goes on where it was stopped."""
    results = circumstances()
    cases, effort = (QUICK_CASES, QUICK) if quick else (CASES, FULL)
    name = "bench.verdicts.quick" if quick else "bench.verdicts"
    with progress() as tell:
        judged = _each(cases, effort, out / f"{name}.parts.jsonl", tell)
    found = wrong(judged)
    results |= {"samplers": judged, "limits": as_rows([found])}
    write(out, name, "Whether the verdict is right", results, page(results), draw(judged))
    (out / f"{name}.parts.jsonl").unlink()
    return 0 if found.report() else 1


def _each(
    cases: tuple[Case, ...], effort: Effort, parts: Path, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Every case, as a file of lines has it, or as it turns out now, which is added."""
    parts.parent.mkdir(parents=True, exist_ok=True)
    lines = parts.read_text().splitlines() if parts.exists() else []
    known = {json.dumps(entry["case"]): entry for entry in map(json.loads, lines)}
    for number, case in enumerate(cases, 1):
        if (key := json.dumps(case)) not in known:
            tell(f"{number} of {len(cases)}: {case.name}")
            known[key] = plain(judged_now(case, effort))
            with parts.open("a") as file:
                file.write(json.dumps(known[key]) + "\n")
    return [numbers(known[json.dumps(case)]) for case in cases]


def judged_now(case: Case, effort: Effort) -> dict[str, Any]:
    """Train a sampler, and look at it from both sides."""
    found = trained(case, effort)
    evidence = run_chains(
        candidates(case.table), sweeps=effort.sweeps, seed=100 + case.seed, progress=False
    )
    verdict, both = judge(found, evidence)
    error = np.abs(found.edge_marginals.to_numpy() - truth(case.table)).max()
    return {
        "case": case,
        "name": case.name,
        "regime": case.regime,
        "spoiled": case.spoiled,
        "true_error": float(error),
        "effective_share": found.quality()["effective_sample_share"],
        "word": verdict.word,
        "why": verdict.why,
        "numbers": both,
    }


def trained(case: Case, effort: Effort) -> SampledPosterior:
    """The sampler of a case, as one of the law that it should have."""
    spoiled = case.spoiled
    options: dict[str, Any] = {"updates": case.updates, "batch": BATCH, "seed": case.seed}
    data, prior, power = observed(case.table), Prior(), 1.0
    if spoiled == OTHER_ROWS:
        data = observed(case.table, rows_seed=1)
    if spoiled == NO_MODE:
        edges = truth(case.table)
        source, target = np.unravel_index(np.abs(edges - 0.5).argmin(), edges.shape)
        prior = Prior(forbid=[(data.names[source], data.names[target])])
    if spoiled == SHARPENED:
        power = 2.0
    rate = {TOO_FAST: 0.1, ALONE: 0.01}.get(spoiled)
    rule = None if rate is None else Adam(rate, log_z_rate=0.1)
    same = spoiled not in (OTHER_ROWS, NO_MODE, SHARPENED)
    if case.regime == "edges":
        law = Dags(log_weights(observed(case.table), BGe(), Prior()))
        learned = law if same else Dags(log_weights(data, BGe(), prior, power))
        setup = setup_of(learned, DESIGN, rule, **options)
    else:
        law = candidates(case.table)
        learned = law if same else Candidates.of(Weights.of(data, BGe(), prior, power))
        known = known_partitions(learned, case.seed, steps=10_000)
        setup = wide_setup(learned, known, DESIGN, rule, **options)
    if spoiled == ALONE:
        setup = replace(setup, source=Fresh(), proposal=OnPolicy())
    return posterior_of(run(setup, progress=False), law, data.names, effort.draws)


def observed(of: Table, rows_seed: int = 0) -> Data:
    """The table itself, or other rows of the same model."""
    rng = np.random.default_rng(of.seed)
    size = of.variables
    edges = np.triu(rng.random((size, size)) < 3 / (size - 1), 1)
    order = rng.permutation(size)
    sizes = of.strength * rng.uniform(0.5, 1.0, (size, size)) * rng.choice([-1, 1], (size, size))
    noise = np.random.default_rng([of.seed, rows_seed]).normal(size=(of.rows, size))
    return load(noise @ np.linalg.inv(np.eye(size) - (edges * sizes)[np.ix_(order, order)]))


@cache
def candidates(of: Table) -> Candidates:
    """Every other variable is one: the law is that of all graphs."""
    return Candidates.of(Weights.of(observed(of), BGe(), Prior()))


@cache
def truth(of: Table) -> Float[np.ndarray, "d d"]:
    """The exact probabilities of edges."""
    return exact_posterior(observed(of)).edge_marginals.to_numpy()


def wrong(judged: list[dict[str, Any]]) -> Measurement:
    """How many agree that must not."""
    found = [s for s in judged if s["word"] == "agrees" and not s["true_error"] <= WRONG]
    return Measurement(f"samplers that agree and are off by more than {WRONG:g}", len(found), 0)


def page(results: dict[str, Any]) -> str:
    judged = results["samplers"]
    good = [s for s in judged if s["true_error"] <= GOOD]
    refused = [s for s in good if s["word"] != "agrees"]
    bad = [s for s in judged if s["true_error"] > WRONG]
    spoilt = [s for s in judged if s["spoiled"]]
    agree = Counter(s["word"] for s in judged)["agrees"]
    rows = [
        [
            s["name"],
            s["regime"],
            s["spoiled"] or "",
            f"{s['true_error']:.3f}",
            f"{s['effective_share']:.0%}",
            s["word"],
            "; ".join(s["why"]),
        ]
        for s in judged
    ]
    ways = [[way, what] for way, what in SPOILT.items() if way in {s["spoiled"] for s in spoilt}]
    heads = ["table", "built by", "spoiled", "true error", "effective share", "verdict", "why"]
    return "\n\n".join(
        [
            f"{len(judged)} trained samplers of graphs, {len(spoilt)} of them spoiled on purpose, "
            "each judged beside independent chains as natgfn judges where the exact posterior is "
            "out of reach. Here it is known: the true error is the largest of a probability of an "
            "edge. Trainings and chains are short, so that many are not good, spoiled or not.",
            limits_table(results["limits"]),
            f"{agree} agree. {len(bad)} are off by more than {WRONG:g}, "
            f"{sum(bool(s['spoiled']) for s in bad)} of them spoiled. {len(good)} are off by "
            f"{GOOD:g} at most, and {len(refused)} of these are refused.",
            table(heads, rows),
            table(["spoiled", "how"], ways),
        ]
    )


def draw(judged: list[dict[str, Any]]) -> Figure:
    """What the verdict saw, against what it could not see."""
    figure, axis = plt.subplots(figsize=(5.5, 4), layout="constrained")
    for word, colour in (("agrees", "tab:green"), ("do not use yet", "tab:red")):
        for spoiled, marker in ((False, "o"), (True, "x")):
            some = [s for s in judged if s["word"] == word and bool(s["spoiled"]) == spoiled]
            seen = [s["numbers"]["largest_difference_from_chains"] for s in some]
            label = f"{word}{', spoiled' if spoiled else ''}: {len(some)}"
            axis.plot(seen, [s["true_error"] for s in some], marker, color=colour, label=label)
    axis.axhline(WRONG, color="grey", linewidth=0.8)
    axis.axvline(GOOD, color="grey", linewidth=0.8)
    axis.set(xscale="log", yscale="log", xlabel="largest difference of an edge from chains")
    axis.set_ylabel("largest true error of an edge")
    axis.legend(fontsize=7)
    return figure
