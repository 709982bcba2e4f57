"""What a certificate costs: beside the updates of its run, and for a large network."""

import statistics
import time

import jax
import jax.numpy as jnp
from rich.console import Console

from natgfn.certify import Effort, certify_states
from natgfn.envs import AbstractEnv, DeceptiveGrid, Hypergrid, Triangles
from natgfn.occupancy import Exact, Sampled
from natgfn.optim import AbstractRule, Adam, Natural, SampleSpace
from natgfn.policies import AbstractDesign, Network, Table
from natgfn.statespace import enumerate_states

from .measure import Measurement, Timer

RUNS: dict[str, tuple[AbstractEnv, AbstractRule, int, AbstractDesign]] = {
    "hypergrid H=16, natural, sampled": (
        Hypergrid(side=16),
        Natural(Sampled(), rate=1e-3),
        128,
        Table(),
    ),
    "hypergrid H=16, default": (Hypergrid(side=16), SampleSpace(), 128, Table()),
    "triangle n=6, natural, exact": (
        Triangles(nodes=6),
        Natural(Exact(), rate=1e-3),
        128,
        Table(),
    ),
    "triangle n=6, default": (Triangles(nodes=6), SampleSpace(), 128, Table()),
    "network, hypergrid H=16, batch 128": (Hypergrid(side=16), Adam(), 128, Network()),
    "network, deceptive H=32, batch 16": (DeceptiveGrid(side=32), Adam(), 16, Network()),
    "network, deceptive H=128, batch 16": (DeceptiveGrid(side=128), Adam(), 16, Network()),
}
LIMIT = 20


def bench_certify() -> int:
    """Measure every limit; 0 if all hold, 1 otherwise."""
    with Console(stderr=True).status("measuring"):
        good = [measurement.report() for measurement in _measurements()]
    return 0 if all(good) else 1


def _measurements():
    for name, (env, rule, batch, design) in RUNS.items():
        timer = Timer(enumerate_states(env), rule, batch, design)
        timer.seconds(100)
        certify_states(timer.algorithm, timer.states)
        ratios = []
        for _ in range(9):
            started = time.perf_counter()
            certify_states(timer.algorithm, timer.states)
            ratios.append((time.perf_counter() - started) / timer.seconds(20))
        what = f"{name}: a certificate, in updates"
        yield Measurement(what, statistics.median(ratios), LIMIT)

    large = Timer(enumerate_states(DeceptiveGrid(side=256)), Adam(), 16, Network())
    large.seconds(500)
    effort = Effort(complete=False)
    certify_states(large.algorithm, large.states, effort)
    started = time.perf_counter()
    found = certify_states(large.algorithm, large.states, effort)
    seconds = time.perf_counter() - started
    size = sum(x.size for x in jax.tree.leaves(large.states.flow.forward) if _is_float(x))
    rho, error = float(found["rho"][0]), float(found["rho_error"][0])
    what = f"deceptive H=256, {size:,} parameters: rho {rho:.4g} (+{error:.2g})"
    yield Measurement(what, seconds, 60.0, " s")


def _is_float(x) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
