"""What the factorised occupancies cost in memory and in time, as the grid grows."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from natgfn.envs import Hypergrid, LazyWalk
from natgfn.objectives import TrajectoryBalance, evaluate
from natgfn.occupancy import ROUTES, Factorised
from natgfn.policies import Flow, Tabular, Uniform
from natgfn.sampling import OnPolicy, Trajectories, Weighting, rollout
from natgfn.statespace import StateSpace, enumerate_states

from .measure import Measurement, inform, median_seconds

SIDES = {2: (16, 32, 64, 128), 3: (16, 32, 64, 128)}
"""Of hypergrids, by dimension."""
WALK = LazyWalk(reach=32, steps=64)
BATCH = 64
MOST = 2**31
"""Bytes a route may need to be timed."""
_MANY = 10**6
"""States of which a route takes so long that it is timed once."""


def bench_factorised() -> int:
    """Print memory, time and their growth; 0 if the limit on memory holds, 1 otherwise."""
    with Console(stderr=True).status("measuring"):
        for dims, sides in SIDES.items():
            _growth(dims, sides)
        walk = enumerate_states(WALK)
        policy = Tabular.forward(walk)
        paths = rollout(walk, policy, OnPolicy(), BATCH, key=jax.random.key(0))
        used = {route: _compiled(walk, route, paths)[1] for route in ("joint", "direct")}
    ratio = used["direct"] / used["joint"]
    what = f"walk of {WALK.steps} steps, as in training: memory of direct / joint"
    return 0 if Measurement(what, ratio, 0.05).report() else 1


def _growth(dims: int, sides: tuple[int, ...]) -> None:
    spaces = [enumerate_states(Hypergrid(side=side, dims=dims)) for side in sides]
    for route in ROUTES:
        memory, seconds = [], []
        for side, space in zip(sides, spaces, strict=True):
            run, used = _compiled(space, route)
            memory.append((side, used))
            name = f"hypergrid D={dims}, H={side}, {route}"
            if used > MOST:
                inform(name, f"{used / 2**20:.2f} MiB")
                continue
            rounds = 5 if space.num_states < _MANY else 1
            seconds.append((side, median_seconds(run, rounds=rounds)))
            inform(name, f"{used / 2**20:.2f} MiB", f"{1e3 * seconds[-1][1]:.2f} ms")
        exponents = [f"H^{_exponent(pairs):.1f}" for pairs in (memory, seconds)]
        inform(f"hypergrid D={dims}, {route}: growth of memory, of time", *exponents)


def _compiled(
    space: StateSpace, route: str, paths: Trajectories | None = None
) -> tuple[Callable[[], jax.Array], int]:
    """The route ready to run, and the bytes it needs beside the space and the policy.

    With the trajectories of a batch it gives what an update of a table needs, else all states.
    """
    arrays, static = eqx.partition(space, lambda x: isinstance(x, np.ndarray))
    logits = np.zeros((space.num_inner, space.num_actions), np.float32)

    def weights(arrays, logits, paths):
        space, policy, batch = eqx.combine(arrays, static), Tabular(logits), None
        if paths is not None:  # what the occupancy does not look at, is not computed
            flow = Flow(policy, Uniform().backward(space), jnp.array(0.0))
            batch = evaluate(
                TrajectoryBalance(),
                space,
                flow,
                paths,
                proposal=OnPolicy(),
                reference=None,
                weighting=Weighting(),
            )
        return Factorised(route)(space, policy, batch).weights

    program = jax.jit(weights).lower(arrays, logits, paths).compile()
    memory = program.memory_analysis()
    assert memory is not None
    used = memory.temp_size_in_bytes + memory.output_size_in_bytes
    return lambda: program(arrays, logits, paths), used


def _exponent(pairs: list[tuple[int, Any]]) -> float:
    """The slope in logarithms."""
    x, y = np.log(np.array(pairs, float)).T
    return float(np.polyfit(x, y, 1)[0])
