"""Timing on a noisy machine: ratios of neighbours, and their median."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from natgfn.algorithm import TrainState, advance, of_seed
from natgfn.envs import AbstractEnv
from natgfn.optim import AbstractRule
from natgfn.policies import MLP, AbstractDesign, AbstractPolicy, Flow, Network, Table
from natgfn.sampling import OnPolicy, rollout
from natgfn.sources import AbstractSource, Fresh
from natgfn.training import Setup, decide


class Measurement(NamedTuple):
    """A number, and the most it may be, or the least."""

    what: str
    value: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def good(self) -> bool:
        """Whether the limit holds; what could not be measured, NaN, does not."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def verdict(self) -> str:
        return "ok" if self.good else "MISSED"

    def report(self) -> bool:
        """Print the line; return whether the limit holds."""
        value, limit = f"{self.value:.3g}{self.unit}", f"{self.limit:g}{self.unit}"
        bound = "least" if self.at_least else "limit"
        print(f"{self.what:<60}{value:>10}   {bound} {limit:<8} {self.verdict}")
        return self.good


def inform(what: str, *values: str) -> None:
    """Print a line without a limit."""
    print(f"{what:<60}{values[0]:>10}   {'  '.join(values[1:])}".rstrip())


class Walker(AbstractDesign):
    """A network that seldom stops.

    Attributes:
        offset: added to the logit of stopping. A new network stops after a few steps, a trained
            one near its modes; with this the new one does too, and all rules can be timed at the
            same flow.
        width: of each hidden layer.
        depth: how many hidden layers.
    """

    offset: float
    width: int = 32
    depth: int = 2

    def __call__(self, env: AbstractEnv, *, key, outputs=None) -> MLP:
        network = Network(self.width, self.depth)(env, key=key, outputs=outputs)
        return eqx.tree_at(
            lambda n: n.rest[-1].bias, network, replace_fn=lambda b: b.at[-1].add(self.offset)
        )


class Timer:
    """One rule on one environment, ready to be timed again and again."""

    def __init__(
        self,
        env: AbstractEnv,
        rule: AbstractRule | None,
        batch: int = 128,
        design: AbstractDesign | None = Table(),
        source: AbstractSource | None = Fresh(),
        seeds: int = 1,
        mesh: Mesh | None = None,
        **others: Any,
    ):
        setup = Setup(env, rule, policy=design, batch=batch, source=source, seeds=seeds, **others)
        setup, _ = decide(setup)
        self.algorithm, self.states, self.mesh = setup.algorithm(), setup.start(), mesh

    def state(self) -> TrainState:
        """That of the first seed."""
        return of_seed(self.states, 0)

    def flow(self) -> Flow:
        """The policies of the first seed."""
        return self.state().flow

    def seconds(self, updates: int) -> float:
        """Time of one update of every seed, over a compiled loop of several."""
        start = time.perf_counter()
        self.states, losses = advance(self.algorithm, self.states, jnp.array(updates), self.mesh)
        jax.block_until_ready(losses)
        return (time.perf_counter() - start) / updates


DRAWS = 1024
"""Trajectories from which a mean length is estimated."""


def mean_length(env: AbstractEnv, policy: AbstractPolicy) -> float:
    """The mean length of new trajectories, in steps."""
    return float(_lengths(env, policy).mean())


@eqx.filter_jit
def _lengths(env, policy):
    return rollout(env, policy, OnPolicy(), DRAWS, key=jax.random.key(0)).lengths


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
