"""What a natural update costs beside a Euclidean one, in tables."""

import resource

import jax
import jax.numpy as jnp
from rich.console import Console

from natgfn.algorithm import advance
from natgfn.envs import Hypergrid, Triangles
from natgfn.occupancy import Exact, Factorised, Sampled
from natgfn.optim import Euclidean, Natural, SampleSpace
from natgfn.statespace import StateSpace, enumerate_states

from .measure import Measurement, Timer, median_ratio

RATE = 1e-3
"""Small, so that both rules stay where they started and do the same work."""


def bench_tabular() -> int:
    """Measure every limit; 0 if all hold, 1 otherwise."""
    with Console(stderr=True).status("measuring"):
        good = [measurement.report() for measurement in _measurements()]
    return 0 if all(good) else 1


def _measurements():
    space = enumerate_states(Triangles(nodes=6))
    base = Timer(space, Euclidean(RATE))
    exact = Timer(space, Natural(Exact(), rate=RATE))
    ratio = median_ratio(exact, base, updates=100)
    yield Measurement("triangle n=6, batch 128: exact / Euclidean", ratio, 1.5, "x")
    yield Measurement("triangle n=6: compilations in a second call", _compilations(space, exact), 0)

    space = enumerate_states(Hypergrid(side=16))
    base = Timer(space, Euclidean(RATE))
    rules = {
        "exact": (Natural(Exact(), rate=RATE), 1.3),
        "sampled": (Natural(Sampled(), rate=RATE), 1.3),
        "factorised": (Natural(Factorised(), rate=RATE), 2.0),
        "sample space": (SampleSpace(), 3.0),
    }
    for name, (rule, limit) in rules.items():
        ratio = median_ratio(Timer(space, rule), base, updates=200)
        yield Measurement(f"hypergrid H=16, batch 128: {name} / Euclidean", ratio, limit, "x")

    space = enumerate_states(Triangles(nodes=7))
    large = Timer(space, Natural(Exact(), rate=RATE))
    large.seconds(1)
    what = f"triangle n=7 ({space.num_inner:,} states), exact: an update"
    yield Measurement(what, min(large.seconds(5) for _ in range(3)), 1.0, " s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    yield Measurement("peak memory of all of this", peak, 4.0, " GiB")


def _compilations(space: StateSpace, timer: Timer) -> int:
    """How often JAX compiles when a compiled loop is called with other values."""
    events = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "compile" in event:
            events.append(event)

    rule = Natural(Exact(), damping=2e-3, rate=2 * RATE)
    timer.algorithm = Timer(space, rule).algorithm
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        advance(timer.algorithm, timer.states, jnp.array(7))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(events)
