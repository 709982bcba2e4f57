"""The relative error of a sampled Fisher, by batch size, for three dampings."""

from pathlib import Path

import matplotlib.pyplot as plt

import natgfn as ng

BATCHES, DAMPINGS = [16, 32, 64, 128, 256, 512, 1024], [1e-3, 1e-2, 1e-1]

rule = ng.optim.Natural(ng.occupancy.Sampled(), damping=1e-2, rate=0.03, log_z_rate=0.5)
run = ng.train(ng.envs.Hypergrid(side=8), rule, updates=200, seeds=5)

figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
for damping in DAMPINGS:
    found = [
        ng.certify.certify_states(run.algorithm, run.state, damping=damping, batch=batch)["rho"]
        for batch in BATCHES
    ]
    axis.plot(BATCHES, [rho.mean() for rho in found], "o-", label=f"damping {damping:g}")
axis.axhline(1.0, color="black", linestyle="--", linewidth=1)
axis.set(xscale="log", yscale="log", xlabel="trajectories", ylabel="relative error of the Fisher")
axis.legend()
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
