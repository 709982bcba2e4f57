"""The terminal law on a grid: the target, and a policy before, during and after training."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import natgfn as ng

SIDE = 8

env = ng.envs.Hypergrid(side=SIDE)
runs = {updates: ng.train(env, updates=updates) for updates in (50, 1_000)}
space = runs[50].space
uniform = ng.metrics.evaluate(space, ng.train(env, updates=1).setup.start().flow)[1][0]
laws = {"target": np.exp(space.log_target), "before training": uniform}
laws |= {f"after {updates:,} updates": run.laws[0] for updates, run in runs.items()}

figure, axes = plt.subplots(1, len(laws), figsize=(10, 2.6), layout="constrained")
for axis, (title, law) in zip(axes, laws.items(), strict=True):
    cells = np.zeros((SIDE, SIDE))
    cells[tuple(np.asarray(space.terminals.cell).T)] = law
    image = axis.imshow(cells.T, origin="lower", vmin=0, vmax=0.25, cmap="viridis")
    axis.set(title=title, xticks=[], yticks=[])
figure.colorbar(image, ax=axes, label="probability")
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
