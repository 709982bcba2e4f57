"""Runs that end in time: as many updates as a number of seconds allows."""

import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from ..algorithm import advance
from ..optim import takes_steps
from .setup import Setup, decide

_MEASURED = 1.0  # seconds of updates from which their speed is known
_PLANNED = 0.95  # of the time: a run that is cut short has not come to the end of its schedules


def lasting(setup: Setup, updates: int) -> Setup:
    """The same run with so many updates, over all of which its schedules extend."""

    def extend(part: Any) -> Any:
        return replace(part, steps=updates) if takes_steps(part) else part

    rule = jax.tree.map(extend, setup.rule, is_leaf=takes_steps)
    return replace(setup, rule=rule, updates=updates)


def paced(setup: Setup, seconds: float) -> Setup:
    """The same run with as many updates as can be made in so many seconds, at least one.

    A second of updates is made first, and forgotten: it takes its share of the time, as does the
    compilation. `run(seconds=...)` is for when the machine becomes slower.
    """
    started = time.perf_counter()
    decided, _ = decide(setup)
    algorithm, states = decided.algorithm(), decided.start()
    states, _ = advance(algorithm, states, jnp.array(1))  # compiles
    count, spent = 1, 0.0
    while spent < _MEASURED:
        count *= 2
        before = time.perf_counter()
        states, _ = advance(algorithm, states, jnp.array(count))
        spent = time.perf_counter() - before
    left = seconds - (time.perf_counter() - started)
    return lasting(setup, max(1, int(_PLANNED * left * count / spent)))
