# %% [markdown]
# # Comparing rules
# Four rules on the 8 x 8 grid, three seeds each, with the exact divergence from the target over
# training. The rates are the best of earlier sweeps; the default has none.

# %%
import matplotlib.pyplot as plt

import natgfn as ng

env = ng.envs.Hypergrid(side=8)
rules = {
    "Euclidean, rate 1": ng.optim.Euclidean(rate=1.0, log_z_rate=0.5),
    "Adam, rate 0.03": ng.optim.Adam(rate=0.03),
    "natural, exact Fisher, rate 0.01": ng.optim.Natural(rate=0.01, log_z_rate=0.5),
    "natural in sample space: the default": None,
}
runs = {
    name: ng.train(env, rule, updates=1_000, seeds=3, progress=False)
    for name, rule in rules.items()
}

# %% [markdown]
# Divergence, total variation and modes found at the end, mean over the seeds.

# %%
for name, run in runs.items():
    kl, tv, modes = (run.metrics[metric][-1].mean() for metric in ("kl", "tv", "modes"))
    print(f"{name:38} KL {kl:8.1e}   TV {tv:8.1e}   modes {modes:.1f} of 4")

# %% [markdown]
# The same over training. Bands are the range of the seeds.

# %%
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for name, run in runs.items():
    kl = run.metrics["kl"]
    axis.plot(run.steps, kl.mean(axis=1), label=name)
    axis.fill_between(run.steps, kl.min(axis=1), kl.max(axis=1), alpha=0.2)
axis.set(yscale="log", xlabel="updates", ylabel="KL(learned, target), nats")
axis.legend()
figure.savefig("comparing_rules.png")
