"""The divergence after training against the rate, for rules that have one and the one without."""

from pathlib import Path

import matplotlib.pyplot as plt

import natgfn as ng

UPDATES, SEEDS = 500, 3
RATES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]

space = ng.statespace.enumerate_states(ng.envs.Hypergrid(side=8))


def final(rule):
    """The mean divergence over the seeds."""
    run = ng.train(space, rule, updates=UPDATES, seeds=SEEDS, evaluate_every=UPDATES)
    return run.metrics["kl"][-1].mean()


rules = {
    "Euclidean": lambda rate: ng.optim.Euclidean(rate, log_z_rate=0.5),
    "natural, step by step": lambda rate: ng.optim.Natural(rate=rate, log_z_rate=0.5),
}
figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, rule in rules.items():
    axis.plot(RATES, [final(rule(rate)) for rate in RATES], "o-", label=name)
axis.axhline(final(ng.optim.SampleSpace()), color="black", label="unit step, no rate")
axis.set(xscale="log", yscale="log", xlabel="rate", ylabel="KL(learned, target), nats")
axis.legend()
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
