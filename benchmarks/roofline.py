"""How near an update comes to what the machine can do, and where the rest of its time goes.

Operations are counted for states that were visited, once each time: a multiplication and an
addition for each entry of each matrix product, an addition for each number that is looked up;
padding, computing again and everything else do not count. A trajectory is evaluated when it is
drawn and again for its gradient, which counts twice as much as the evaluation it belongs to.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from natgfn.envs import Hypergrid
from natgfn.metrics import evaluate
from natgfn.optim import AbstractRule, Adam, SampleSpace
from natgfn.sampling import rollout
from natgfn.statespace import StateSpace, enumerate_states

from .measure import Measurement, Timer, Walker, inform, mean_length, median_seconds
from .pages import as_rows, circumstances, limits_table, progress, table, write
from .peers.workers.tasks import DEPTH, RATE, WIDTH, Task, offset_for

TASKS = tuple(Task("grid", dims, side, 128) for dims, side in ((4, 16), (2, 8), (2, 64)))
SHARES = {(TASKS[0], "long"): 0.4, (TASKS[0], "fresh"): 0.25}
"""Of the peak, at least, in useful operations of Adam."""
ROUGHLY = 1.33
"""How far the parts may be from the whole, as a factor."""
RULES: dict[str, AbstractRule] = {
    "Adam": Adam(RATE, log_z_rate=RATE),
    "natural": replace(SampleSpace.network(), damping=1e9, log_z_rate=RATE),
}


def bench_roofline(out: Path = Path("results"), quick: bool = False) -> int:
    """The share of the machine's peak that an update uses, and its parts; 0 if it is enough."""
    results, found = circumstances(), []
    entries: list[dict[str, Any]] = []
    rounds = 3 if quick else 11
    with progress() as tell:
        tell("this machine")
        results["peak"] = {"flops": peak_flops(rounds), "bytes": peak_bytes(rounds)}
        peak = results["peak"]["flops"]
        inform("this machine: float32 matrix products", f"{1e-9 * peak:.0f} GFLOP/s")
        inform("this machine: memory", f"{1e-9 * results['peak']['bytes']:.1f} GB/s")
        for task in TASKS[1:2] if quick else TASKS:
            name, space = task.name, enumerate_states(Hypergrid(task.side, task.dims))
            for regime, length in task.lengths.items():
                for rule in RULES:
                    tell(f"{name}, {regime}, {rule}")
                    entry: dict[str, Any] = {"task": name, "regime": regime, "rule": rule}
                    entry |= _measure(task, space, length, rule, rounds)
                    entry["share"] = entry["useful"] / entry["seconds"] / peak
                    entries.append(entry)
                    _tell(entry)
                    least = SHARES.get((task, regime))
                    if rule == "Adam" and least is not None:
                        what = f"{name}, {regime}: useful share of the peak"
                        percent = 100 * entry["share"]
                        found.append(Measurement(what, percent, 100 * least, "%", at_least=True))
                        found[-1].report()
    results |= {"tasks": entries, "limits": as_rows(found)}
    name, title = "bench.roofline.quick" if quick else "bench.roofline", "Share of the peak"
    write(out, name, title, results, _page(results), _draw(results))
    return 0 if all(measurement.good for measurement in found) else 1


def peak_flops(rounds: int) -> float:
    """Operations a second in float32 matrix products, each of which needs the one before."""
    size, count = 1024, 8
    matrix = jnp.eye(size) + 1e-3 * jax.random.normal(jax.random.key(0), (size, size))

    @jax.jit
    def chain(x):
        for _ in range(count):
            x = 0.5 * (x @ matrix)
        return x

    return count * 2 * size**3 / median_seconds(chain, matrix, rounds=rounds)


def peak_bytes(rounds: int) -> float:
    """Bytes a second in `a + s b`, of arrays that are larger than a cache."""
    size = 2**26
    a, b = jnp.ones(size), jnp.ones(size)
    seconds = median_seconds(jax.jit(lambda a, b: a + 3.0 * b), a, b, rounds=rounds)
    return 3 * a.nbytes / seconds


def evaluation(dims: int, actions: int, width: int = WIDTH, depth: int = DEPTH) -> int:
    """Operations of the network in one state, whose input is a look-up for each coordinate."""
    return dims * width + 2 * (depth - 1) * width**2 + 2 * width * actions


def useful(visits: float, dims: int, actions: int) -> float:
    """Operations of an update by gradient: each visit once when drawn, thrice for the gradient."""
    return 4 * visits * evaluation(dims, actions)


def natural_products(batch: int, parameters: int) -> float:
    """Operations of the natural step's own products.

    With $J$ of `batch` rows: half of $J J^\\top$, its factorisation, and $J$ or its transpose with
    a vector three times: the centre, the step and its divergence.
    """
    return batch * (batch + 1) * parameters + batch**3 / 3 + 3 * 2 * batch * parameters


def _measure(
    task: Task, space: StateSpace, length: float, rule: str, rounds: int
) -> dict[str, Any]:
    """An update, its operations and its parts, in seconds."""

    def timer(offset: float) -> Timer:
        return Timer(space, RULES[rule], task.batch, Walker(offset, WIDTH, DEPTH))

    def at(offset: float) -> float:
        return mean_length(space, timer(offset).flow().forward)

    whole = timer(offset_for(at, length))
    first = whole.seconds(1)
    updates = max(1, round(0.3 / whole.seconds(2)))
    seconds = float(np.median([whole.seconds(updates) for _ in range(rounds)]))
    state: Any = whole.state()
    algorithm, keys = whole.algorithm, jax.random.split(jax.random.key(1), 16)
    paths = _paths(algorithm, state.flow, keys[0])
    visits = float(np.mean([_paths(algorithm, state.flow, k).lengths.sum() for k in keys]))
    differentiate = median_seconds(_gradient, algorithm, state.flow, paths, rounds=rounds)
    updated = median_seconds(_update, algorithm, state, paths, rounds=rounds)
    parts = {
        "rollout": median_seconds(_paths, algorithm, state.flow, keys[0], rounds=rounds),
        "objective and gradient": differentiate,
        "rule": updated - differentiate,
    }
    size = sum(x.size for x in jax.tree.leaves(eqx.filter(state.flow, eqx.is_inexact_array)))
    return {
        "seconds": seconds,
        "first_call_s": first,
        "visits": visits,
        "useful": useful(visits, task.dims, space.num_actions),
        "products": natural_products(task.batch, size) if rule == "natural" else 0.0,
        "parts": parts,
        "parts_over_whole": sum(parts.values()) / seconds,
        "evaluation": median_seconds(lambda: evaluate(space, whole.states.flow)[1], rounds=3),
    }


@eqx.filter_jit
def _paths(algorithm, flow, key):
    with jax.default_matmul_precision("highest"):
        of_draws = (algorithm.env, flow.forward, algorithm.proposal, algorithm.batch)
        return rollout(*of_draws, key=key, keep=True)


@eqx.filter_jit
def _gradient(algorithm, flow, paths):
    with jax.default_matmul_precision("highest"):
        return algorithm.evaluate(flow, paths).gradient()


@eqx.filter_jit
def _update(algorithm, state, paths):
    with jax.default_matmul_precision("highest"):
        batch = algorithm.evaluate(state.flow, paths)
        context = algorithm.rule.context(algorithm.env, state.flow, batch) | {"step": state.step}
        params = eqx.filter(state.flow, eqx.is_inexact_array)
        transform = algorithm.rule.transform()
        steps, optimiser = transform.update(batch.gradient(), state.optimiser, params, **context)
        return eqx.apply_updates(params, steps), optimiser


def adds_up(entry: dict[str, Any]) -> bool:
    """Whether the parts, compiled one by one, take about as long as the whole."""
    return 1 / ROUGHLY <= entry["parts_over_whole"] <= ROUGHLY


def _tell(entry: dict[str, Any]) -> None:
    name, whole = f"{entry['task']}, {entry['regime']}, {entry['rule']}", entry["seconds"]
    inform(f"{name}: an update", f"{1e3 * whole:.2f} ms", f"{entry['visits']:.0f} states visited")
    rate, with_rule = entry["useful"] / whole, (entry["useful"] + entry["products"]) / whole
    inform(f"{name}: useful operations", f"{1e-9 * rate:.1f} GFLOP/s", f"{entry['share']:.0%}")
    if entry["products"]:
        inform(f"{name}: with the rule's products", f"{1e-9 * with_rule:.1f} GFLOP/s")
    for part, seconds in entry["parts"].items():
        inform(f"{name}: {part}", f"{1e3 * seconds:.2f} ms", f"{seconds / whole:.0%}")
    verdict = "they add up" if adds_up(entry) else "they do NOT add up"
    inform(f"{name}: parts / whole", f"{entry['parts_over_whole']:.2f}x", verdict)
    inform(f"{name}: exact metrics, beside it", f"{1e3 * entry['evaluation']:.2f} ms")


def _page(results: dict[str, Any]) -> str:
    peak, rows = results["peak"], []
    for entry in results["tasks"]:
        whole = entry["seconds"]
        parts = [f"{1e3 * part:.2f}" for part in entry["parts"].values()]
        rows.append(
            [
                f"{entry['task']}, {entry['regime']}, {entry['rule']}",
                f"{1e3 * whole:.2f}",
                f"{entry['visits']:.0f}",
                f"{1e-6 * entry['useful']:.0f}",
                f"{1e-6 * entry['products']:.0f}",
                f"{entry['share']:.0%}",
                *parts,
                f"{entry['parts_over_whole']:.2f}" + ("" if adds_up(entry) else " (no)"),
                f"{1e3 * entry['evaluation']:.1f}",
            ]
        )
    heads = ["task", "ms", "visits", "useful MFLOP", "rule's MFLOP", "share of the peak"]
    heads += ["rollout, ms", "gradient, ms", "rule, ms", "parts / whole", "exact metrics, ms"]
    return "\n\n".join(
        [
            f"Peak: {1e-9 * peak['flops']:.0f} GFLOP/s in float32 matrix products, "
            f"{1e-9 * peak['bytes']:.1f} GB/s to and from memory. Useful operations are those of "
            "the network in visited states: once when drawn, thrice for the gradient. natgfn "
            "evaluates a state that is visited several times once, so that where there are few "
            "states the share can exceed 100%. The parts are compiled one by one; exact metrics "
            "are no part of an update.",
            limits_table(results["limits"]),
            table(heads, rows),
        ]
    )


def _draw(results: dict[str, Any]) -> Figure:
    """Parts of an update, and the time of its useful operations at the peak, as shares of it."""
    entries = results["tasks"]
    figure, axis = plt.subplots(figsize=(10, 4), layout="constrained")
    places, bottom = np.arange(len(entries)), np.zeros(len(entries))
    for part in entries[0]["parts"]:
        shares = np.array([entry["parts"][part] / entry["seconds"] for entry in entries])
        axis.bar(places, shares, 0.6, bottom=bottom, label=part)
        bottom += shares
    useful_shares = [entry["share"] for entry in entries]
    axis.plot(places, useful_shares, "k_", markersize=22, label="useful operations at the peak")
    axis.axhline(1, color="0.7", linewidth=1)
    labels = [f"{e['task']}\n{e['regime']}\n{e['rule']}" for e in entries]
    axis.set_xticks(places, labels, fontsize=7)
    axis.set(ylabel="share of an update")
    axis.legend(fontsize="small")
    return figure
