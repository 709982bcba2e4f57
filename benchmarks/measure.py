"""Timing on a noisy machine: ratios of neighbours, and their median."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from natgfn.algorithm import advance
from natgfn.envs import AbstractEnv
from natgfn.optim import AbstractRule
from natgfn.policies import AbstractDesign, Table
from natgfn.sources import AbstractSource, Fresh
from natgfn.training import Setup, decide


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
        env: AbstractEnv,
        rule: AbstractRule,
        batch: int = 128,
        design: AbstractDesign = Table(),
        source: AbstractSource = Fresh(),
    ):
        setup, _ = decide(Setup(env, rule, policy=design, batch=batch, source=source))
        self.algorithm, self.states = setup.algorithm(), setup.start()

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
