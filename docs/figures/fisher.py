"""What the Fisher does to a gradient: occupancies, and gradients by occupancy."""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import natgfn as ng
from natgfn.fisher import Fisher

SIDE, DAMPING = 16, 1e-8

space = ng.statespace.enumerate_states(ng.envs.Hypergrid(side=SIDE))
policy = ng.policies.Table()(space, key=jax.random.key(0))
backward = ng.policies.Uniform().backward(space, key=jax.random.key(0))
log_pb = ng.policies.backward_table(space, backward)
log_z = jnp.log(jnp.sum(jnp.exp(space.log_rewards)))


def of_rows(tree):
    """The norm of each state's row."""
    return np.linalg.norm(np.asarray(tree.logits), axis=1)


fisher = Fisher(space, policy, ng.occupancy.Exact()(space, policy))
log_pf = ng.policies.forward_table(space, policy)
residuals = ng.statespace.exact_residuals(space, log_pf, log_pb, log_z)
gradient = ng.policies.Tabular(residuals.score_gradient)
natural, _ = ng.solvers.Block().solve(fisher, gradient, DAMPING)
visits = np.asarray(fisher.occupancy.weights)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
cells = np.full((SIDE, SIDE), np.nan)
inner = np.asarray(space.states.cell)[: space.num_inner]
cells[tuple(inner.T)] = np.log10(visits)
figure.colorbar(
    left.imshow(cells.T, origin="lower", cmap="viridis"), ax=left, label="log10 of visits"
)
left.set(title="occupancy of each cell", xticks=[], yticks=[])
right.scatter(visits, of_rows(gradient), s=8, label="Euclidean")
right.scatter(visits, of_rows(natural), s=8, label="natural")
right.set(xscale="log", yscale="log", xlabel="expected visits", title="gradient in each cell")
right.legend()
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
