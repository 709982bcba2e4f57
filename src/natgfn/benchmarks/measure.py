"""Timing on a noisy machine: ratios of neighbours, and their median."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..optim import AbstractRule
from ..policies import AbstractDesign, Flow, Table, Uniform
from ..statespace import StateSpace
from ..train import AbstractSource, Algorithm, Fresh, advance
from ..train.algorithm import stack_seeds


class Measurement(NamedTuple):
    """A number, and the most it may be."""

    what: str
    value: float
    limit: float
    unit: str = ""

    def report(self) -> bool:
        """Print the line; return whether the limit holds."""
        good = self.value <= self.limit
        verdict = "ok" if good else "MISSED"
        value, limit = f"{self.value:.3g}{self.unit}", f"{self.limit:g}{self.unit}"
        print(f"{self.what:<60}{value:>10}   limit {limit:<8} {verdict}")
        return good


def inform(what: str, *values: str) -> None:
    """Print a line without a limit."""
    print(f"{what:<60}{values[0]:>10}   {'  '.join(values[1:])}".rstrip())


class Timer:
    """One rule on one environment, ready to be timed again and again."""

    def __init__(
        self,
        space: StateSpace,
        rule: AbstractRule,
        batch: int = 128,
        design: AbstractDesign = Table(),
        source: AbstractSource = Fresh(),
    ):
        algorithm = Algorithm(env=space, rule=rule, batch=batch, source=source)
        self.algorithm = algorithm.with_traced_numbers()
        forward = design(space, key=jax.random.key(0))
        flow = Flow(forward, Uniform.backward(space), jnp.array(0.0))
        self.states = stack_seeds(lambda seed: self.algorithm.init(flow, seed), [0])

    def seconds(self, updates: int) -> float:
        """Time of one update, over a compiled loop of several."""
        start = time.perf_counter()
        self.states, losses = advance(self.algorithm, self.states, jnp.array(updates))
        jax.block_until_ready(losses)
        return (time.perf_counter() - start) / updates


def median_seconds(function: Callable[..., Any], *arguments: Any, rounds: int = 15) -> float:
    """Median time of a compiled function."""

    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        return time.perf_counter() - start

    once()
    return statistics.median(once() for _ in range(rounds))


def median_ratio(timer: Timer, base: Timer, *, updates: int, rounds: int = 15) -> float:
    """How many times longer an update of `timer` takes, the two measured in turn."""
    for warm in (timer, base):
        warm.seconds(updates)
    return statistics.median(timer.seconds(updates) / base.seconds(updates) for _ in range(rounds))
