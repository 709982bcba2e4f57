"""The data of a page's charts, and what they show in words: `page.js` draws them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from .subject import Graph, HeatMap, Law, Subject, seen

POINTS = 400
"""The most points of a curve; of a longer record these are evenly spaced."""

OBJECTS = 1_500
"""The most objects of a law that are drawn one by one: the most probable ones of the target."""

THRESHOLD = 0.5
"""The probability over which an edge is drawn, before a reader chooses another."""

LARGE = 30
"""Variables of a graph that is drawn as wide as the page, and so is the table of its edges."""

TITLES = {
    "kl": "KL(sampler || target), nats",
    "reverse_kl": "KL(target || sampler), nats",
    "path_kl": "KL between trajectory laws, nats",
    "tv": "total variation",
    "jsd": "Jensen-Shannon divergence, nats",
    "l1": "mean absolute error of a probability",
    "marginal_error": "largest error of a marginal",
    "elbo": "ELBO, a lower bound on log Z",
    "eubo": "EUBO, an upper bound on log Z",
    "replayed_eubo": "EUBO over replayed objects",
    "log_z": "log Z by importance weights",
    "learned_log_z": "learned log Z",
    "effective_share": "effective share of the samples",
    "gap": "reward gap: expected log R of the target less the sampler's",
    "modes": "modes that the sampler has",
    "discovered": "modes discovered in training",
    "modes_drawn": "modes among the draws",
    "pearson": "correlation of log q with log R, test set",
    "spearman": "rank correlation of log q with log R, test set",
    "loss": "expected loss",
    "train_loss": "loss of the batches",
    "residual_median": "median size of a residual",
    "residual_p90": "nine in ten residuals are below",
    "mean_log_reward": "mean log R of the draws",
    "top_log_reward": "mean log R of the best draws",
    "top_diversity": "distance between the best draws",
    "distinct": "distinct objects among the draws",
    "length": "steps of a trajectory",
    "rejected": "rejected steps so far",
    "rho": "rho: error of the surrogate Fisher (the guarantee needs less than 1)",
}
"""What a metric is; any other goes by its name. In the order of the page."""

_ERROR = "_se"  # of the number whose name it follows: its standard error


def in_order(subjects: Sequence[Subject], kind: str) -> list[str]:
    """The names of all metrics (or `certificates`) of all runs, the telling ones first."""
    found = {name for subject in subjects for name in getattr(subject, kind)}
    names = [name for name in found if not name.endswith(_ERROR)]
    known = list(TITLES)
    return sorted(names, key=lambda n: (known.index(n) if n in known else len(known), n))


def title_of(name: str) -> str:
    return TITLES.get(name, name.replace("_", " "))


def curves(subjects: Sequence[Subject], name: str, kind: str = "metrics") -> dict[str, Any]:
    """One metric over training: the median of the seeds in a band from lowest to highest.

    Standard errors, where there are any, widen the band.
    """
    series, words, shown = [], [], []
    for run, subject in enumerate(subjects):
        found: Mapping[str, np.ndarray] = getattr(subject, kind)
        if name not in found:
            continue
        values = found[name]
        known = np.flatnonzero(np.isfinite(values).all(axis=1))
        words.append(f"{subject.name}: {_course(subject.steps, values)}")
        if not len(known):
            continue
        known = known[np.unique(np.linspace(0, len(known) - 1, POINTS).round().astype(int))]
        values, error = values[known], found.get(name + _ERROR, np.zeros_like(values))[known]
        error = np.nan_to_num(error, posinf=0.0)
        shown.append(values.ravel())
        one = {
            "run": run,
            "updates": subject.steps[known].tolist(),
            "seconds": _short(subject.seconds[known]),
            "middle": _short(np.median(values, axis=1)),
        }
        if values.shape[1] > 1 or error.any():
            one["low"] = _short((values - error).min(axis=1))
            one["high"] = _short((values + error).max(axis=1))
        series.append(one)
    return {
        "id": f"{kind}-{name}",
        "kind": "curves",
        "title": title_of(name),
        "name": name,
        "series": series,
        "log": bool(shown) and _suits_logarithm(np.concatenate(shown)),
        "alt": f"{title_of(name)} over training. {' '.join(words)}",
    }


def _suits_logarithm(values: Float[np.ndarray, " n"]) -> bool:
    """Whether they are positive, up to rounding, and differ by more than a factor of fifty."""
    above = values[values > 0]
    if not len(above) or values.min() < -1e-9 * above.max():
        return False
    return bool(above.max() > 50 * above.min())


def _course(steps: np.ndarray, values: Float[np.ndarray, "lines seeds"]) -> str:
    """Where a metric started and ended, in words."""
    known = np.flatnonzero(np.isfinite(values).all(axis=1))
    if not len(known):
        return "never finite."
    first, last = known[0], known[-1]
    ends = [seen(float(np.median(values[line]))) for line in (first, last)]
    low, high = seen(float(values[last].min())), seen(float(values[last].max()))
    spread = f", {low} to {high} over {values.shape[1]} seeds" if values.shape[1] > 1 else ""
    return f"{ends[0]} at update {steps[first]:,}, {ends[1]} at update {steps[last]:,}{spread}."


def law(subjects: Sequence[Subject]) -> dict[str, Any] | None:
    """Learned against target probabilities of objects, for all runs that know both."""
    series, words = [], []
    for run, subject in enumerate(subjects):
        if (known := subject.law) is not None:
            best = np.argsort(-known.target, kind="stable")[:OBJECTS]
            target, learned = known.target[best], known.learned[best]
            series.append({"run": run, "target": _short(target), "learned": _short(learned)})
            worst = float(np.abs(known.target - known.learned).max())
            words.append(
                f"{subject.name}: {len(known.target):,} objects, no probability further than "
                f"{worst:.2g} from the target{_only(known)}."
            )
    if not series:
        return None
    alt = f"Learned against target probability; on the diagonal they agree. {' '.join(words)}"
    return {"id": "law", "kind": "law", "title": "terminal law", "series": series, "alt": alt}


def _only(known: Law) -> str:
    hidden = len(known.target) - OBJECTS
    return f"; the {OBJECTS:,} most probable ones are drawn" if hidden > 0 else ""


def graph(subject: Subject, run: int, found: Graph) -> dict[str, Any]:
    """Variables on a circle, and the edges between them, of which a reader chooses how many."""
    values, names = found.probabilities, found.names
    likely = np.argwhere(np.nan_to_num(values) > THRESHOLD)
    likely = likely[np.argsort(-values[*likely.T], kind="stable")]
    first = [f"{names[i]} to {names[j]} {values[i, j]:.2f}" for i, j in likely[:12]]
    more = [f"and {len(likely) - len(first)} more"] if len(likely) > len(first) else []
    listed = f": {', '.join(first + more)}" if first else ""
    return {
        "id": f"graph-{run}",
        "kind": "graph",
        "run": run,
        "title": f"likely edges, {subject.name}",
        "names": list(names),
        "order": around(values),
        "values": [_short(row, 3) for row in values],
        "threshold": THRESHOLD,
        "large": len(names) > LARGE,
        "alt": f"{len(names)} variables, and {len(likely)} edges with a probability over "
        f"{THRESHOLD}{listed}.",
    }


def around(values: Float[np.ndarray, "d d"]) -> list[int]:
    """The variables in the order of a circle: causes before effects, and each near its own.

    Edges are taken by falling probability, unless they close a cycle with those before; then the
    variables follow each other depth first.
    """
    size = len(values)
    known = np.nan_to_num(values)
    children: list[list[int]] = [[] for _ in range(size)]
    reached = np.eye(size, dtype=bool)
    for place in np.argsort(-known, axis=None, kind="stable"):
        source, target = divmod(int(place), size)
        if known[source, target] < 0.1:
            break
        if not reached[target, source]:
            children[source].append(target)
            reached |= np.outer(reached[:, source], reached[target])
    order: list[int] = []

    def visit(variable: int) -> None:
        for child in reversed(children[variable]):
            if child not in order:
                visit(child)
        order.append(variable)

    for variable in reversed(range(size)):
        if reached[:, variable].sum() == 1:  # by itself alone: a source
            visit(variable)
    return order[::-1]


def heat_map(subject: Subject, run: int, number: int, drawn: HeatMap) -> dict[str, Any]:
    """A matrix as colours."""
    values, names = drawn.values, drawn.names
    place = divmod(int(np.nanargmax(values)), values.shape[1])
    where = [str(i) if names is None else names[axis][i] for axis, i in enumerate(place)]
    top = f"{drawn.axes[0]} {where[0]}, {drawn.axes[1]} {where[1]}"
    return {
        "id": f"map-{run}-{number}",
        "kind": "map",
        "run": run,
        "large": max(values.shape) > LARGE and names is not None,
        "title": f"{drawn.title}, {subject.name}",
        "values": [_short(row, 3) for row in values],
        "axes": drawn.axes,
        "names": None if names is None else [_labels(axis) for axis in names],
        "log": drawn.logarithmic,
        "alt": f"{drawn.title} of {subject.name}, {values.shape[0]} by {values.shape[1]}; the "
        f"largest is {seen(float(np.nanmax(values)))} at {top}.",
    }


def _labels(names: Sequence[str]) -> list[str]:
    """Names beside an axis: long ones are cut, unless two would become the same."""
    cut = [name if len(name) <= 16 else f"{name[:15]}…" for name in names]
    return cut if len(set(cut)) == len(cut) else list(names)


def _short(values: np.ndarray, digits: int = 6) -> list[float | None]:
    """Numbers with few digits, which take less of the file; None where JSON has none."""
    return [float(f"{x:.{digits}g}") if np.isfinite(x) else None for x in values.tolist()]
