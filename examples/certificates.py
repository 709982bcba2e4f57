# %% [markdown]
# # Certificates
# A sampled Fisher is not the exact one. If its relative error $\rho_\lambda$ is below 1, its
# direction is within $\rho / (1 - \rho)$ of the exact one. A certificate computes both sides while
# a run trains, and changes nothing in it.

# %%
import matplotlib.pyplot as plt

import natgfn as ng

rule = ng.optim.Natural(ng.occupancy.Sampled(), damping=1e-2, rate=0.03, log_z_rate=0.5)
run = ng.train(
    ng.envs.Hypergrid(side=8),
    rule,
    watch=(ng.watch.Exact(), ng.watch.Certificate(every=25)),
    updates=500,
    progress=False,
)
found = run.certificates
print(f"relative error at the end: {found['rho'][-1, 0]:.2f}")
print(f"direction: off by {found['direction_error'][-1, 0]:.2f}", end=", ")
print(f"at most {found['direction_limit'][-1, 0]:.2f} is allowed")

# %% [markdown]
# Over training. Where $\rho$ is above the dashed line nothing is promised.

# %%
figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
axis.plot(found["step"], found["rho"][:, 0], label="relative error of the Fisher")
axis.plot(found["step"], found["direction_error"][:, 0], label="true error of the direction")
axis.axhline(1.0, color="black", linestyle="--", linewidth=1)
axis.set(xlabel="updates", yscale="log")
axis.legend()
figure.savefig("certificates.png")

# %% [markdown]
# More damping brings the error down, and so do larger batches, but not from the start. A state that
# a small batch misses costs at most 1; a rare state that a larger one happens to see counts far too
# much, and may cost more.

# %%
for batch in (16, 128, 1024):
    for damping in (1e-3, 1e-2, 1e-1):
        again = ng.certify.certify_states(run.algorithm, run.state, damping=damping, batch=batch)
        print(f"{batch:5} trajectories, damping {damping:5}: rho {again['rho'][0]:.2f}")
