# %% [markdown]
# # A posterior over graphs
# Which proteins act on which? From observations alone, some directions cannot be told. The
# posterior over directed acyclic graphs says how sure one can be: exactly, by a sum over all
# graphs, and by a GFlowNet that builds graphs edge by edge.

# %%
import matplotlib.pyplot as plt
import numpy as np

import natgfn as ng

names = ["Raf", "Mek", "Plcg", "PIP2", "PIP3"]  # five of the eleven
data = ng.dag.load(ng.dag.sachs()[names], log=True)
exact = ng.dag.exact_posterior(data)
print(exact.edge_marginals.round(2))  # row is source, column is target

# %% [markdown]
# The most probable graphs, with their probabilities.

# %%
for graph, probability in zip(*exact.top(3), strict=True):
    edges = [f"{names[i]} -> {names[j]}" for i, j in zip(*np.nonzero(graph), strict=True)]
    print(f"{probability:.3f}  {', '.join(edges)}")

# %% [markdown]
# A trained sampler of the same posterior, and how far it is. `quality` needs no exact posterior;
# `errors` does.

# %%
found = ng.dag.fit(data, updates=500, samples=2_000, progress=False)
for name, value in (found.quality() | found.errors(exact)).items():
    print(f"{name:38} {value:9.5f}")

# %%
figure, axis = plt.subplots(figsize=(4, 4), layout="constrained")
axis.plot([0, 1], [0, 1], color="0.7", linewidth=1)
axis.scatter(exact.edge_marginals, found.edge_marginals)
axis.set(xlabel="probability of an edge, exact", ylabel="by the sampler")
figure.savefig("graph_posterior.png")
