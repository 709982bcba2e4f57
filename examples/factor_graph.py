# %% [markdown]
# # A factor graph
# An Ising model on a 6 x 6 grid: $2^{36}$ objects, which nobody lists. Spins get their values one
# by one, in the order of an elimination; the policy sees only the spins that still matter.
# Messages over the junction tree then give gradient, Fisher and metrics exactly, so that training
# has no noise and nothing to tune.

# %%
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np

import natgfn as ng

SIDE = 6
grid = ng.graphical.ising(nx.grid_2d_graph(SIDE, SIDE), coupling=0.4, field=0.05)
run = ng.train(ng.envs.Assignments(grid), updates=50, progress=False)
print(f"KL(learned, target): {run.metrics['kl'][-1, 0]:.1e} nats")
print(f"worst error of a marginal: {run.metrics['marginal_error'][-1, 0]:.1e}")

# %% [markdown]
# Exact inference, for comparison: the learned log Z, and the probability that a spin is up.

# %%
exact = ng.graphical.infer(grid)
print(f"log Z: learned {run.flow().log_z:.4f}, exact {exact.log_z:.4f}")
spins = np.asarray(run.sample(10_000).values)
print(f"a corner is up: sampled {spins[:, 0].mean():.3f}, exact {exact.marginals[0][1]:.3f}")

# %% [markdown]
# Six samples. Neighbours agree more often than not.

# %%
figure, axes = plt.subplots(1, 6, figsize=(9, 1.8), layout="constrained")
for axis, sample in zip(axes, spins, strict=False):
    axis.imshow(sample.reshape(SIDE, SIDE), cmap="gray", vmin=0, vmax=1)
    axis.set(xticks=[], yticks=[])
figure.savefig("factor_graph.png")
