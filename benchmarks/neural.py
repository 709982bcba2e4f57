"""What an update of a network costs: in milliseconds, beside Adam, and part by part."""

import statistics
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from rich.console import Console

from natgfn.envs import DeceptiveGrid
from natgfn.optim import AbstractRule, Adam, FisherAdam, SampleSpace
from natgfn.sampling import rollout
from natgfn.solvers import KFAC
from natgfn.sources import AbstractSource, Mixed, Replay, Teacher, revisit
from natgfn.statespace import enumerate_states

from .measure import Measurement, Timer, Walker, inform, median_ratio, median_seconds

STOP = -4.5
"""Added to the logit of stopping: trajectories of about a hundred steps, as of a trained one."""

RATE = 1e-9
"""Next to nothing, as the damping of `SampleSpace` below is next to infinite: the rules stay
at that flow, and do the same work."""

BASE = Adam(RATE, log_z_rate=RATE, clip=1.0)


IN_SAMPLE_SPACE = replace(SampleSpace.network(), damping=1e9, log_z_rate=RATE)
RULES: dict[str, tuple[AbstractRule, float]] = {
    "sample space": (IN_SAMPLE_SPACE, 1.3),
    "K-FAC": (FisherAdam(KFAC(), rate=RATE, log_z_rate=RATE), 2.0),
    "CG, 20 iterations": (FisherAdam(rate=RATE, log_z_rate=RATE), 10.0),
}
SOURCES: dict[str, tuple[AbstractRule, AbstractSource]] = {
    "Adam, mixed batches": (BASE, Mixed()),
    "sample space, mixed batches": (IN_SAMPLE_SPACE, Mixed()),
    "Adaptive Teacher": (BASE, Teacher(Walker(STOP), BASE)),
}


def bench_neural() -> int:
    """Measure every limit; 0 if all hold, 1 otherwise."""
    with Console(stderr=True).status("measuring"):
        good = [measurement.report() for measurement in _measurements()]
    return 0 if all(good) else 1


def _measurements():
    matrix = jnp.ones((2048, 2048))
    seconds = median_seconds(jax.jit(jnp.matmul), matrix, matrix)
    inform("this machine: a float32 matrix product", f"{2e-9 * 2048**3 / seconds:.0f} GFLOP/s")

    space = enumerate_states(DeceptiveGrid(side=128))

    def timer(rule: AbstractRule, batch: int, source: AbstractSource = Replay()) -> Timer:
        return Timer(space, rule, batch, Walker(STOP), source)

    # Whole turns of every source: Replay has two kinds of batches, the Teacher four.
    for batch, updates in ((16, 12), (128, 4)):
        name, base = f"deceptive H=128, batch {batch}", timer(BASE, batch)
        if batch == 16:
            base.seconds(updates)
            spent = 1e3 * statistics.median(base.seconds(updates) for _ in range(15))
            yield Measurement(f"{name}: an Adam update", spent, 8.0, " ms")
        for what, (rule, limit) in RULES.items():
            ratio = median_ratio(timer(rule, batch), base, updates=updates, rounds=9)
            yield Measurement(f"{name}: {what} / Adam", ratio, limit, "x")
        if batch == 16:
            for what, (rule, source) in SOURCES.items():
                ratio = median_ratio(timer(rule, batch, source), base, updates=updates, rounds=9)
                inform(f"{name}: {what} / Adam", f"{ratio:.2f}x")
        _show_parts(timer(IN_SAMPLE_SPACE, batch), name)


def _show_parts(timer: Timer, name: str) -> None:
    """Where the time of an update goes, each part compiled by itself."""
    timer.seconds(10)  # fills the buffer
    algorithm, key = timer.algorithm, jax.random.key(0)
    state: Any = jax.tree.map(lambda x: x[0] if isinstance(x, jax.Array) else x, timer.states)

    @eqx.filter_jit
    def fresh(algorithm, flow, key):
        return rollout(algorithm.env, flow.forward, algorithm.proposal, algorithm.batch, key=key)

    @eqx.filter_jit
    def again(algorithm, flow, memory, key):
        return revisit(algorithm.env, flow, memory, algorithm.batch, key=key)

    @eqx.filter_jit
    def gradient(algorithm, flow, paths):
        return algorithm.evaluate(flow, paths).gradient()

    @eqx.filter_jit
    def update(algorithm, flow, optimiser, paths):
        batch = algorithm.evaluate(flow, paths)
        context = algorithm.rule.context(algorithm.env, flow, batch)
        params = eqx.filter(flow, eqx.is_inexact_array)
        return algorithm.rule.transform().update(batch.gradient(), optimiser, params, **context)

    paths = fresh(algorithm, state.flow, key)
    inform(f"{name}: mean length of a trajectory", f"{float(paths.lengths.mean()):.0f}")
    differentiate = median_seconds(gradient, algorithm, state.flow, paths)
    parts = {
        "rollout": median_seconds(fresh, algorithm, state.flow, key) / 2,
        "replay": median_seconds(again, algorithm, state.flow, state.memory, key) / 2,
        "gradient": differentiate,
        "solve": median_seconds(update, algorithm, state.flow, state.optimiser, paths)
        - differentiate,
    }
    for part, seconds in parts.items():
        share = seconds / sum(parts.values())
        inform(f"{name}: {part} in sample space", f"{1e3 * seconds:.2f} ms", f"{share:.0%}")
