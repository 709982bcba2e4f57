"""How the time and the memory of an update grow, as exponents of what it grows with."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from natgfn.algorithm import advance_one, of_seed
from natgfn.envs import Hypergrid
from natgfn.optim import AbstractRule, Adam, SampleSpace
from natgfn.policies import AbstractDesign, Table
from natgfn.statespace import StateSpace, enumerate_states

from .measure import Measurement, Timer, Walker, inform, mean_length, median_ratio
from .pages import as_rows, circumstances, limits_table, progress, table, write

RATE = 1e-9
"""Next to nothing, as the damping below is next to infinite: the policy stays where it is."""
RULES: dict[str, dict[str, AbstractRule]] = {
    "network": {
        "Adam": Adam(RATE, log_z_rate=RATE),
        "natural": replace(SampleSpace.network(), damping=1e9, log_z_rate=RATE),
    },
    "table": {"Adam": Adam(RATE, log_z_rate=RATE), "natural": SampleSpace(damping=1e9)},
}
SEEDS = 3.0
"""Times one seed, that five may take at most."""


class Case(NamedTuple):
    """What is varied, and the case itself."""

    sweep: str
    side: int = 16
    batch: int = 64
    width: int = 64
    """Of the network, or 0 for a table."""
    offset: float = 0.0
    """Added to the logit of stopping."""
    seeds: int = 1


SWEEPS: dict[str, tuple[Case, ...]] = {
    "batch": tuple(Case("batch", batch=n) for n in (16, 64, 256, 1024)),
    "states": tuple(Case("states", side=n) for n in (8, 16, 32, 64)),
    "parameters": tuple(Case("parameters", width=n) for n in (32, 64, 128, 256)),
    "steps": tuple(Case("steps", side=64, offset=x) for x in (0.0, -1.5, -3.0, -4.5)),
    "seeds, network": tuple(Case("seeds, network", 8, width=32, seeds=n) for n in range(1, 6)),
    "seeds, table": tuple(Case("seeds, table", 8, width=0, seeds=n) for n in range(1, 6)),
    "seeds, network, h16": tuple(Case("seeds, network, h16", width=32, seeds=n) for n in (1, 5)),
    "seeds, table, h16": tuple(Case("seeds, table, h16", width=0, seeds=n) for n in (1, 5)),
}
"""2D grids, batch 64, a network of two hidden layers of 64, but for what is varied."""


def bench_scaling(out: Path = Path("results"), quick: bool = False) -> int:
    """Time and memory against batch, states, parameters, steps and seeds; 0 if seeds are cheap."""
    results, found = circumstances(), []
    lines: list[dict[str, Any]] = []
    with progress() as tell:
        for sweep, cases in SWEEPS.items():
            for rule in ("Adam", "natural"):
                points = []
                for case in (cases[0], cases[-1]) if quick else cases:
                    tell(f"{sweep}, {rule}: {len(points) + 1} of {len(cases)}")
                    points.append(measure(case, rule, rounds=3 if quick else 7))
                lines.append(line(sweep, rule, points))
                _tell(lines[-1])
                if sweep.startswith("seeds"):
                    ratio = in_turn(cases[-1], cases[0], rule, rounds=3 if quick else 9)
                    what = f"{sweep}, {rule}: five / one"
                    found.append(Measurement(what, ratio, SEEDS, "x"))
                    found[-1].report()
    results |= {"sweeps": lines, "limits": as_rows(found)}
    name, title = "bench.scaling.quick" if quick else "bench.scaling", "How an update grows"
    write(out, name, title, results, _page(results), _draw(results))
    return 0 if all(measurement.good for measurement in found) else 1


def timer(case: Case, rule: str) -> Timer:
    """A case, ready to be timed."""
    space = enumerate_states(Hypergrid(case.side))
    design: AbstractDesign = Walker(case.offset, case.width) if case.width else Table()
    rules = RULES["network" if case.width else "table"]
    return Timer(space, rules[rule], case.batch, design, seeds=case.seeds)


def calls(timer: Timer) -> int:
    """Updates of half a second."""
    count = 2
    for _ in range(4):  # the first one compiles, and short ones are mostly the call itself
        count = max(2, round(0.5 / timer.seconds(count)))
    return count


def in_turn(case: Case, other: Case, rule: str, rounds: int) -> float:
    """How many times longer an update of `case` takes than one of `other`."""
    timed, base = timer(case, rule), timer(other, rule)
    return median_ratio(timed, base, updates=calls(timed), rounds=rounds)


def measure(case: Case, rule: str, rounds: int) -> dict[str, Any]:
    """Seconds and bytes of an update of all seeds, and everything that it might grow with."""
    timed = timer(case, rule)
    space = cast(StateSpace, timed.algorithm.env)
    one = of_seed(timed.states, 0)
    program = cast(Any, advance_one).lower(timed.algorithm, one, jnp.array(1)).compile()
    memory = program.compiled.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    # States of all seeds, and what as many programs need as run side by side.
    side_by_side = min(case.seeds, os.cpu_count() or 1)
    total = case.seeds * held + side_by_side * memory.temp_size_in_bytes

    count = calls(timed)
    trained = jax.tree.leaves(eqx.filter(timed.flow(), eqx.is_inexact_array))
    return {
        "batch": case.batch,
        "states": space.num_states,
        "parameters": sum(x.size for x in trained),
        "steps": mean_length(space, timed.flow().forward),
        "seeds": case.seeds,
        "seconds": statistics.median(timed.seconds(count) for _ in range(rounds)),
        "bytes": total,
    }


def exponent(x: Sequence[float | int], y: Sequence[float | int]) -> float:
    """The slope of `y` against `x` in logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def line(sweep: str, rule: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    """A sweep with its exponents."""
    along = sweep.partition(",")[0]
    x = [point[along] for point in points]
    growth = {y: exponent(x, [point[y] for point in points]) for y in ("seconds", "bytes")}
    return {"sweep": sweep, "along": along, "rule": rule, "points": points, "exponents": growth}


def _tell(found: dict[str, Any]) -> None:
    name = f"{found['sweep']}, {found['rule']}"
    for point in found["points"]:
        time, held = f"{1e3 * point['seconds']:.3g} ms", f"{point['bytes'] / 2**20:.1f} MiB"
        inform(f"{name}: {point[found['along']]:.3g}", time, held)
    grows = found["exponents"]
    inform(f"{name}: time, memory", f"n^{grows['seconds']:.2f}", f"n^{grows['bytes']:.2f}")


def _page(results: dict[str, Any]) -> str:
    rows = []
    for found in results["sweeps"]:
        points, grows = found["points"], found["exponents"]
        rows.append(
            [
                found["sweep"],
                found["rule"],
                ", ".join(f"{point[found['along']]:.4g}" for point in points),
                ", ".join(f"{1e3 * point['seconds']:.3g}" for point in points),
                f"{grows['seconds']:.2f}",
                ", ".join(f"{point['bytes'] / 2**20:.1f}" for point in points),
                f"{grows['bytes']:.2f}",
            ]
        )
    heads = ["against", "rule", "values", "ms an update", "exponent", "MiB", "exponent"]
    return "\n\n".join(
        [
            "2D hypergrids of 16 cells a side, batch 64, a network with two hidden layers of 64, "
            "new policies, one seed, but for what is varied; side 64 for steps. Memory is what the "
            "compiled update holds at most: its arguments, results and everything between. "
            "Exponents are slopes in logarithms. An update is one of every seed, in calls of half "
            "a second: a call takes some milliseconds of its own, more with several seeds.",
            limits_table(results["limits"]),
            table(heads, rows),
        ]
    )


def _draw(results: dict[str, Any]) -> Figure:
    names = list(dict.fromkeys(found["along"] for found in results["sweeps"]))
    size = (2.8 * len(names), 5.5)
    figure, axes = plt.subplots(2, len(names), figsize=size, squeeze=False, layout="constrained")
    for column, along in enumerate(names):
        for found in (f for f in results["sweeps"] if f["along"] == along):
            label = f"{found['rule']}{found['sweep'].removeprefix(along)}"
            x = [point[along] for point in found["points"]]
            for row, (what, scale) in enumerate((("seconds", 1e3), ("bytes", 2.0**-20))):
                slope = f"{label}: {found['exponents'][what]:.2f}"
                y = [scale * point[what] for point in found["points"]]
                axes[row, column].plot(x, y, ".-", label=slope)
        for axis in axes[:, column]:
            axis.set(xscale="log", yscale="log", xlabel=along)
            axis.legend(fontsize=6)
    axes[0, 0].set_ylabel("ms an update")
    axes[1, 0].set_ylabel("MiB")
    return figure
