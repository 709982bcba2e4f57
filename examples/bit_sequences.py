# %% [markdown]
# # Bit sequences
# Strings of 32 bits, written four at a time, with eight hidden modes: $2^{32}$ objects, too many
# to list. A network is trained, and every metric is an estimate from samples, with its standard
# error.

# %%
import matplotlib.pyplot as plt

import natgfn as ng

env = ng.envs.AppendedBitSequences(length=32, word=4, modes=8, exponent=20.0)
run = ng.train(
    env,
    source=ng.sources.Mixed(),  # new and replayed strings in every batch
    enumerate=False,
    batch=16,
    updates=1_000,
    progress=False,
)

# %% [markdown]
# How good is it? The effective share says how many exact samples a draw is worth; the rank
# correlation compares $\log q$ with $\log R$ on strings that training has not chosen.

# %%
last = {name: values[-1, 0] for name, values in run.metrics.items()}
print(f"ELBO {last['elbo']:.2f} ± {last['elbo_se']:.2f}")
print(f"log Z {last['log_z']:.2f} ± {last['log_z_se']:.2f}, learned {last['learned_log_z']:.2f}")
print(f"effective share of samples {last['effective_share']:.2f}")
print(f"rank correlation {last['spearman']:.2f}")
print(f"modes discovered {last['discovered']:.0f} of {env.num_modes}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for name in ("elbo", "log_z", "learned_log_z"):
    left.plot(run.steps, run.metrics[name][:, 0], label=name)
left.set(xlabel="updates", ylabel="nats")
left.legend()
right.plot(run.steps, run.metrics["spearman"][:, 0])
right.set(xlabel="updates", ylabel="rank correlation")
figure.savefig("bit_sequences.png")
