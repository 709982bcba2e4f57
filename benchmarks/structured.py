"""What a structured natural update costs beside a Euclidean one, and on a long chain."""

import networkx as nx
import numpy as np
from rich.console import Console

from natgfn.envs import Assignments
from natgfn.graphical import ising
from natgfn.occupancy import Beliefs, Sampled, Separators, Truncated
from natgfn.optim import Euclidean, Natural, SampleSpace
from natgfn.policies import ContextTable
from natgfn.sources import Messages

from .measure import Measurement, Timer, inform, median_ratio

RATE = 1e-4
"""Small, so that all rules stay where they started and do the same work."""


def bench_structured() -> int:
    """Measure every limit; 0 if all hold, 1 otherwise."""
    with Console(stderr=True).status("measuring"):
        good = [measurement.report() for measurement in _measurements()]
    return 0 if all(good) else 1


def _measurements():
    rng = np.random.default_rng(0)
    graph = nx.grid_2d_graph(10, 10)
    env = Assignments(ising(graph, 0.6 * rng.normal(size=graph.number_of_edges())), "numbered")
    base = Timer(env, Euclidean(RATE), design=ContextTable())
    inform("grid 10 x 10, batch 128: a Euclidean update", f"{1e3 * _median(base):.3g} ms")
    rules = {
        "exact separators": Natural(Separators(), rate=RATE),
        "separators with a floor": Natural(Separators(floor=True), rate=RATE),
    }
    for name, rule in rules.items():
        ratio = median_ratio(Timer(env, rule, design=ContextTable()), base, updates=20)
        yield Measurement(f"grid 10 x 10, batch 128: {name} / Euclidean", ratio, 1.5, "x")
    others = {
        "sampled": (Natural(Sampled(), rate=RATE), ContextTable()),
        "sample space": (SampleSpace(), ContextTable()),
        "truncated to 4": (Natural(Truncated(), rate=RATE), ContextTable(4)),
        "beliefs on 4": (Natural(Beliefs(), rate=RATE), ContextTable(4)),
    }
    for name, (rule, design) in others.items():
        ratio = median_ratio(Timer(env, rule, design=design), base, updates=20)
        inform(f"grid 10 x 10, batch 128: {name} / Euclidean", f"{ratio:.3g}x")
    timer = Timer(env, Natural.without_noise(), design=ContextTable(), source=Messages())
    ratio = median_ratio(timer, base, updates=20)
    inform("grid 10 x 10: natural without noise / Euclidean", f"{ratio:.3g}x")

    chain = Assignments(ising(nx.path_graph(1_000), rng.normal(size=999)), "numbered")
    timer = Timer(chain, Natural.without_noise(), design=ContextTable(), source=Messages())
    what = "chain of 1,000 variables: a natural update without noise"
    yield Measurement(what, 1e3 * _median(timer), 10.0, " ms")


def _median(timer: Timer, updates: int = 20, rounds: int = 7) -> float:
    timer.seconds(updates)
    return float(np.median([timer.seconds(updates) for _ in range(rounds)]))
