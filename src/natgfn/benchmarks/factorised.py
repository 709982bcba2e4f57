"""What the factorised occupancies cost in memory and in time, as the grid grows."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from rich.console import Console

from ..envs import Hypergrid, LazyWalk
from ..occupancy import Factorised
from ..occupancy.factorised import ROUTES
from ..policies import Tabular
from ..statespace import StateSpace, enumerate_states
from .measure import Measurement, inform, median_seconds

SIDES = {2: (16, 32, 64, 128), 3: (16, 32, 64)}
"""Of hypergrids, by dimension; a cube of side 128 would take minutes."""
WALK = LazyWalk(reach=32, steps=64)
MOST = 2**31
"""Bytes a route may need to be timed."""


def bench_factorised() -> int:
    """Print memory, time and their growth; 0 if the limit on memory holds, 1 otherwise."""
    with Console(stderr=True).status("measuring"):
        for dims, sides in SIDES.items():
            _growth(dims, sides)
        walk = enumerate_states(WALK)
        used = {route: _compiled(walk, route)[1] for route in ("joint", "direct")}
    ratio = used["direct"] / used["joint"]
    what = f"walk of {WALK.steps} steps: memory of direct / joint"
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
            seconds.append((side, median_seconds(run, rounds=5)))
            inform(name, f"{used / 2**20:.2f} MiB", f"{1e3 * seconds[-1][1]:.2f} ms")
        exponents = [f"H^{_exponent(pairs):.1f}" for pairs in (memory, seconds)]
        inform(f"hypergrid D={dims}, {route}: growth of memory, of time", *exponents)


def _compiled(space: StateSpace, route: str) -> tuple[Callable[[], jax.Array], int]:
    """The route ready to run, and the bytes it needs beside the space and the policy."""
    arrays, static = eqx.partition(space, lambda x: isinstance(x, np.ndarray))
    logits = np.zeros((space.num_inner, space.num_actions), np.float32)

    def weights(arrays, logits):
        return Factorised(route)(eqx.combine(arrays, static), Tabular(logits)).weights

    program = jax.jit(weights).lower(arrays, logits).compile()
    memory = program.memory_analysis()
    assert memory is not None
    used = memory.temp_size_in_bytes + memory.output_size_in_bytes
    return lambda: program(arrays, logits), used


def _exponent(pairs: list[tuple[int, Any]]) -> float:
    """The slope in logarithms."""
    x, y = np.log(np.array(pairs, float)).T
    return float(np.polyfit(x, y, 1)[0])
