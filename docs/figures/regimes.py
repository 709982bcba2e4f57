"""One policy, three occupancies: exact, sampled, and a product of coordinate marginals."""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import natgfn as ng

SIDE = 16

run = ng.train(ng.envs.Hypergrid(side=SIDE), updates=200)
space, flow = run.space, run.flow()
batch = run.algorithm.draw(flow, jax.random.key(1))
routes = {
    "exact": ng.occupancy.Exact()(space, flow.forward),
    "128 trajectories": ng.occupancy.Sampled()(space, flow.forward, batch),
    "product of marginals": ng.occupancy.Factorised()(space, flow.forward),
}

figure, axes = plt.subplots(1, len(routes), figsize=(9, 3.2), layout="constrained")
inner = np.asarray(space.states.cell)[: space.num_inner]
for axis, (title, found) in zip(axes, routes.items(), strict=True):
    visits = jnp.zeros(space.num_inner).at[found.states].add(found.weights, mode="drop")
    cells = np.zeros((SIDE, SIDE))
    cells[tuple(inner.T)] = np.log10(np.maximum(visits, 1e-4))
    image = axis.imshow(cells.T, origin="lower", vmin=-4, vmax=0, cmap="viridis")
    axis.set(title=title, xticks=[], yticks=[])
figure.colorbar(image, ax=axes, label="log10 of expected visits")
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
