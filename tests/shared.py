"""How far a run on several devices is from that on one; for a process that has several devices.

`python shared.py CASE ...` prints a JSON object: for each case the largest relative difference of
floating-point numbers in the whole training state, and how many other numbers are not equal.
"""

import json
import sys
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import install_import_hook

if __name__ == "__main__":  # elsewhere conftest.py does it
    install_import_hook("natgfn", "beartype.beartype")

import natgfn as ng
from natgfn.algorithm import mesh_of
from natgfn.objectives import LogVariance, SubTrajectoryBalance, Transport
from natgfn.optim import Adam, FisherAdam, Natural, SampleSpace
from natgfn.policies import Network
from natgfn.sampling import (
    OnPolicy,
    UniformMixture,
    Weighting,
    joined,
    own_columns,
    own_part,
    rollout,
    summed,
)
from natgfn.solvers import KFAC
from natgfn.sources import ACE, Known, Mixed, Perturbed, Recall, Replay, Teacher

GRID = ng.Setup(ng.envs.Hypergrid(side=4), batch=8, updates=5, watch=())
SMALL = Network(4, 1)
LEARNED = SampleSpace.network()

CASES = {
    "table": replace(
        GRID,
        proposal=UniformMixture(0.3),
        reference=OnPolicy(),
        weighting=Weighting(self_normalise=True),
    ),
    "few states": replace(GRID, policy=Network(6, 2), batch=128),
    "rows kept": replace(
        GRID, env=ng.envs.Hypergrid(side=8), enumerate=False, policy=SMALL, source=Mixed()
    ),
    "rows of any policy": replace(
        GRID, policy=SMALL, backward=SMALL, rule=LEARNED, source=Replay("loss"), seeds=2
    ),
    "K-FAC": replace(
        GRID, policy=SMALL, rule=FisherAdam(KFAC(refresh=2)), source=Teacher(SMALL), seeds=2
    ),
    "K-FAC, replayed": replace(GRID, policy=SMALL, rule=FisherAdam(KFAC()), source=Recall(32)),
    "conjugate gradients": replace(
        GRID, policy=SMALL, rule=FisherAdam(adaptive=True), source=Known(np.array([17, 20]))
    ),
    "exact Fisher": replace(GRID, rule=Natural(), source=Perturbed(Replay())),
    "log variance": replace(GRID, rule=Adam(), objective=LogVariance(), source=ACE()),
    "stretches": replace(GRID, rule=Adam(), objective=SubTrajectoryBalance(), policy=SMALL),
    "transport": replace(GRID, rule=Adam(), objective=Transport(exact=False), policy=SMALL),
}


def apart(setup: ng.Setup, devices: int) -> tuple[float, int]:
    """Of the states that two runs end in: floating-point numbers, and all others."""
    one, several = (
        [np.asarray(x) for x in jax.tree.leaves(eqx.filter(run.state, eqx.is_array))]
        for run in (ng.run(setup, devices=n, progress=False) for n in (None, devices))
    )
    pairs = list(zip(one, several, strict=True))
    assert all(x.dtype == y.dtype and x.shape == y.shape for x, y in pairs)
    far = [
        float(np.max(np.abs(x - y) / (1e-3 + np.abs(x))))
        for x, y in pairs
        if x.dtype.kind == "f" and x.size
    ]
    return max(far), sum(int(np.sum(x != y)) for x, y in pairs if x.dtype.kind != "f")


def algebra(devices: int) -> tuple[float, int]:
    """The same of parts that are put together again, and of trajectories."""
    spec, mesh = PartitionSpec(), mesh_of(devices)
    matrix = jax.random.normal(jax.random.key(0), (4 * devices, 7))
    env, key = ng.envs.Hypergrid(side=4), jax.random.key(1)
    policy = Network(4, 1)(env, key=key)

    def both(matrix):
        some = own_columns(own_part(matrix))
        again = joined(own_part(matrix.T, axis=1), axis=1).T
        paths = rollout(env, policy, OnPolicy(), 4 * devices, key=key)
        return (summed(some @ some.T), again), (paths.states, paths.actions, paths.live)

    shared = partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    (gram, again), several = jax.jit(shared(both))(matrix)
    _, one = jax.jit(both)(matrix)
    wrong = (gram - matrix @ matrix.T, again - matrix)
    return max(float(jnp.max(jnp.abs(x))) for x in wrong), sum(
        int(jnp.sum(x != y)) for x, y in zip(*map(jax.tree.leaves, (one, several)), strict=True)
    )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    there = jax.device_count()
    found = {
        name: algebra(there) if name == "algebra" else apart(CASES[name], there)
        for name in sys.argv[1:]
    }
    print(json.dumps(found))
