r"""Sachs: what the blocks that the paper names leave out of the Fisher, and what few states do.

A small MLP is trained as in `dag-sachs`. At the beginning, halfway and at the end, surrogates of
its Fisher (`paper/blocks.py` has the definitions) are compared with a reference: the trajectory
Fisher on policy from one visit of each of many independent trajectories, weighted by length, and
divided by the mean length, as `eq:dag_sampled_fisher` is a mean over states. All matrices are dense
and in float64.

- *layerwise*: no cross terms between the parameters of different layers;
- *output head*: none between those of the last layer and all others;
- *child-node heads*: none between the last layer's parameters for edges into different children
  $j$, for STOP, and all other layers;
- *child-node outputs*: none in $C(\pi)$ between edges into different children, or STOP;
- *factorised Bernoulli*: none in $C(\pi)$ at all, which leaves $\mathrm{Diag}(\pi_a (1 - \pi_a))$.

The paper names these blocks, and for a policy that adds edges in any order defines none: the
definitions are ours.

What structure costs is $\gamma_{B,\lambda}$ and $\rho_\lambda$ of a surrogate on the very states of
the reference. What sampling costs is $\rho_\lambda$ of the whole Fisher on few states, picked as in
the paper (some of every depth) from trajectories of the policy itself, or from replayed ones, as
its solver sees them: then their law differs, too. The other rows of these columns have both, of one
batch each. The dampings are where the paper's starts, and the most that it may become.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from rich.progress import track

from natgfn.algorithm import Algorithm, TrainState, of_seed
from natgfn.certify.surrogate import pencil_eigenvalues
from natgfn.envs import Dags
from natgfn.fisher import Occupancy
from natgfn.occupancy import Stratified
from natgfn.policies import MLP, Network
from natgfn.sampling import OnPolicy, rollout
from natgfn.training import describe
from natgfn.training import run as train

from ..blocks import WHOLE, surrogates
from ..figures import draw_surrogates
from ..rules import DampedFisher
from ..tables import made_by, table
from . import continuation, dag_sachs
from .continuation import WARM_UP, Case, Continuation
from .study import folder_for


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    study: str
    """The scale of `dag_sachs` that says how many proteins there are."""
    training: continuation.Scale
    seeds: int
    parts: int
    """Of the reference: an even number, for it has halves."""
    visits: int
    """Of a part."""
    states: int
    """Of a sampled surrogate."""


SCALES = {
    "smoke": Scale("smoke", dag_sachs.SCALES["smoke"][-1], 1, 4, 32, 16),
    "paper": Scale("paper", dag_sachs.SCALES["paper"][-1], 1, 16, 512, DampedFisher().states),
}

DESIGN = Network(6, 2)
DAMPINGS = (DampedFisher().damping, DampedFisher().most)
COLUMNS = ("gamma", "rho", "fresh", "replayed")
_BLOCKS = 0xB10
"""Sets the keys of all that is drawn here apart from those of training."""


def run(scale: str, seeds: int | None, work: Path) -> dict[str, Any]:
    """All numbers of the page."""
    size = SCALES[scale]
    points = [
        point
        for case in dag_sachs.cases(size.study, seeds or size.seeds)
        for point in over_training(case, size, work)
    ]
    return {
        "configuration": {"policy": describe(DESIGN), "rule": describe(WARM_UP), **asdict(size)},
        "points": points,
    }


def over_training(case: Case, size: Scale, work: Path) -> list[dict[str, Any]]:
    """Train, and measure before, halfway and at the end."""
    env, points = Dags(case.log_weights), []
    study, last = Continuation(size.training, work, ()), size.training.warm_up
    setup = replace(study.setup("MLP", case, env, WARM_UP, last), policy=DESIGN)
    states = setup.start()
    for updates in (0, last // 2, last):
        if updates:
            title = f"{case} {updates} updates"
            until, out = replace(setup, updates=updates), folder_for(work, title)
            states = train(until, start=states, out=out, resume=True, progress=title).state
        found = measure(setup.algorithm(), of_seed(states, 0), size)
        points.append({"seed": case.seed, "updates": updates, **found})
    return points


def measure(algorithm: Algorithm, state: TrainState, size: Scale) -> dict[str, Any]:
    """The numbers of one policy."""
    env, policy = algorithm.env, state.flow.forward
    assert isinstance(env, Dags)
    assert isinstance(policy, MLP)
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), _BLOCKS)
    few_key, *keys = jax.random.split(key, 1 + size.parts)
    few = sampled(algorithm, state, size.states, few_key)
    parts = [visits(env, policy, size.visits, key) for key in keys]
    half, other = (reference(env, policy, some) for some in (parts[::2], parts[1::2]))
    both = {name: (x + other[name]) / 2 for name, x in half.items()}
    small = {law: in_float64(env, policy, occupancy) for law, occupancy in few.items()}
    curvature = np.linalg.eigvalsh(both[WHOLE])

    def at(damping: float) -> dict[str, Any]:
        def error(other: np.ndarray) -> dict[str, float]:
            return errors(both[WHOLE], other, damping)

        return {
            "damping": damping,
            "rank": float(np.sum(curvature / (curvature + damping))),
            "half": error(half[WHOLE])["rho"],
            "surrogates": {
                name: error(x) | {law: error(y[name])["rho"] for law, y in small.items()}
                for name, x in track(both.items(), f"damping {damping:g}")
            },
        }

    return {
        "parameters": len(curvature),
        "length": float(np.mean([part.weights for part in parts])),
        "dampings": [at(damping) for damping in DAMPINGS],
    }


def errors(
    fisher: Float[np.ndarray, "p p"], surrogate: Float[np.ndarray, "p p"], damping: float
) -> dict[str, float]:
    r"""$\gamma_{B,\lambda}$ and $\rho_\lambda$.

    If $x$ is an eigenvalue of $F_\lambda^{-1/2} (B - F) F_\lambda^{-1/2}$, then $-x / (1 + x)$ is
    one of $B_\lambda^{-1/2} (F - B) B_\lambda^{-1/2}$: one spectrum has both at its ends.
    """
    with jax.enable_x64(True):
        found = pencil_eigenvalues(jnp.asarray(fisher), jnp.asarray(surrogate), damping)
    ends = np.asarray(found)[[0, -1]]
    return {"gamma": float(np.abs(ends / (1 + ends)).max()), "rho": float(np.abs(ends).max())}


def reference(env: Dags, policy: MLP, parts: Sequence[Occupancy]) -> dict[str, np.ndarray]:
    """The surrogates of all visits, a mean over states."""
    found = (in_float64(env, policy, part) for part in track(parts, "reference"))
    total = reduce(lambda x, y: {name: x[name] + y[name] for name in x}, found)
    weight = np.sum([np.asarray(part.weights, float) for part in parts])
    return {name: x / weight for name, x in total.items()}


def in_float64(env: Dags, policy: MLP, occupancy: Occupancy) -> dict[str, np.ndarray]:
    """`surrogates` of a policy that was trained in float32."""
    with jax.enable_x64(True):
        wide = jax.tree.map(
            lambda x: jnp.asarray(x, float) if eqx.is_inexact_array(x) else x, (policy, occupancy)
        )
        return {name: np.asarray(x) for name, x in surrogates(env, *wide).items()}


@eqx.filter_jit
def visits(env: Dags, policy: MLP, num: int, key: PRNGKeyArray) -> Occupancy:
    """One visit of each of `num` trajectories, with the length of the trajectory for a weight."""
    path_key, time_key = jax.random.split(key)
    paths = rollout(env, policy, OnPolicy(), num, key=path_key)
    times = jax.random.randint(time_key, (num,), 0, paths.lengths)
    states = jax.tree.map(lambda x: x[times, jnp.arange(num)], paths.states)
    return Occupancy(states, paths.lengths.astype(float))


@eqx.filter_jit
def sampled(
    algorithm: Algorithm, state: TrainState, num: int, key: PRNGKeyArray
) -> dict[str, Occupancy]:
    """States of a batch on policy, and of the batch that the next update would have."""
    fresh_key, new_key, draw_key = jax.random.split(key, 3)
    of_draws = (algorithm.env, state.flow, algorithm.proposal, algorithm.batch)
    memory = algorithm.source.gather(*of_draws, state.memory, key=new_key)
    env, policy = algorithm.env, state.flow.forward
    paths = {
        "fresh": rollout(env, policy, OnPolicy(), algorithm.batch, key=fresh_key),
        "replayed": algorithm.source.draw(*of_draws, memory, state.step, key=draw_key),
    }
    return {
        law: Stratified(num)(env, policy, algorithm.evaluate(state.flow, some))
        for law, some in paths.items()
    }


def page(results: Mapping[str, Any]) -> str:
    """The Markdown page."""
    points, size = results["points"], results["configuration"]
    states = size["parts"] * size["visits"]
    seeds = len({point["seed"] for point in points})
    whole, structure = [], []
    for updates in dict.fromkeys(point["updates"] for point in points):
        some = [point for point in points if point["updates"] == updates]
        at = list(zip(*(point["dampings"] for point in some), strict=True))
        each = [_mean([x[name] for x in found]) for found in at for name in ("rank", "half")]
        whole.append([str(updates), _mean([point["length"] for point in some]), *each])
        for name in some[0]["dampings"][0]["surrogates"]:
            cells = [
                _mean([x["surrogates"][name][column] for x in found])
                for found in at
                for column in COLUMNS
            ]
            structure.append([str(updates), name, *cells])
    blocks = [
        errors
        for point in points
        for found in point["dampings"]
        for name, errors in found["surrogates"].items()
        if name != WHOLE
    ]
    few, dampings = size["states"], [found["damping"] for found in points[0]["dampings"]]
    names = ("gamma", "rho", f"rho of {few}", f"rho of {few} replayed")
    heads = [f"{name}, damping {x:g}" for x in dampings for name in names]
    names = ("effective rank", "rho of a half")
    ranks = [f"{name}, damping {x:g}" for x in dampings for name in names]
    below = {column: sum(x[column] < 1 for x in blocks) for column in COLUMNS}
    sections = [
        f"# dag-blocks, {results['scale']} scale",
        results["about"],
        f"{made_by(results)} {points[0]['parameters']:,} parameters; {seeds} "
        f"{'seed' if seeds == 1 else 'seeds: mean ± standard deviation'}.",
        "## The surrogates",
        f"gamma and rho on the {states:,} states of the reference, and rho on {few} states. Of the "
        f"{len(blocks)} block surrogates below, {sum(x['gamma'] < 0.5 for x in blocks)} have gamma "
        f"< 1/2, the paper's sufficient condition, and {below['rho']} rho < 1, which its theorem "
        f"asks for; on {few} states on policy {below['fresh']}, on {few} replayed ones "
        f"{below['replayed']}. Both are about the worst direction: they limit what a step can "
        "lose, and do not say what it loses along a given gradient.",
        table(["updates", "blocks", *heads], structure),
        "## The reference",
        "The mean length of trajectories, the effective rank of the reference, and its error: rho "
        f"of half of its states against all {states:,}, which is about that of all against "
        "infinitely many.",
        table(["updates", "length", *ranks], whole),
    ]
    return "\n\n".join(sections) + "\n"


def _mean(values: Sequence[float]) -> str:
    """With the standard deviation, if there are several."""
    mean = f"{np.mean(values):.3g}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values):.1g}"


def figures(results: Mapping[str, Any], out: Path, stem: str) -> list[Path]:
    """What structure costs, beside what sampling costs, over training."""
    return [draw_surrogates(results["points"], WHOLE, out / f"{stem}.png")]
