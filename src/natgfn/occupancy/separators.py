"""The structured regime, exact: occupancies of contexts by messages over the junction tree."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..envs import AbstractEnv
from ..fisher import Occupancy
from ..objectives import Batch, Expected
from ..policies import AbstractPolicy, Tabular, clique_probs, contexts_of, require_assignments
from .base import AbstractOccupancy


class Separators(AbstractOccupancy):
    r"""$p_t(c)$ of every context, exactly (`app:computational_regimes_detailed`).

    The conditional Fisher depends on the context alone, so $F = \sum_t \sum_c p_t(c)\,
    \overline A_t(c)$ is the trajectory Fisher: of an aligned policy, and of one that sees less,
    whose contexts are sums over those of the separators. Where zero factors rule out a value in
    some states of such a context only, $p_t(c)$ is exact, and $\overline A_t(c)$ is a surrogate: as
    if every value were possible that some state has.

    A sampled gradient in a context that is rarer than one trajectory in $N$ was made by one of
    them, and an exact $p_t(c) \ll 1 / N$ would blow it up. With a floor the weight of a visited
    context is at least its share of the visits, which is what a sampled Fisher has.

    Attributes:
        floor: whether to take the larger of $p_t(c)$ and the visits of the batch over $N$. For
            sampled gradients of a table.
    """

    floor: bool = False

    def __call__(
        self, env: AbstractEnv, policy: AbstractPolicy, batch: Batch | Expected | None = None
    ) -> Occupancy:
        weights = context_occupancy(env, policy)
        if self.floor:
            if not isinstance(batch, Batch) or not isinstance(policy, Tabular):
                raise ValueError("Separators(floor=True) is for tables and sampled gradients")
            share = batch.paths.live.ravel() / batch.size
            visits = jnp.zeros_like(weights).at[policy.rows(batch.paths.before).ravel()].add(share)
            weights = jnp.maximum(weights, visits)
        return Occupancy(jnp.arange(weights.size), weights, complete=True, contexts=True)


def context_occupancy(env: AbstractEnv, policy: AbstractPolicy) -> Float[Array, " rows"]:
    """The probability of every context that a policy sees, under its own law."""
    env = require_assignments(env, "occupancy.Separators")
    tree, _ = env.require_tree("occupancy.Separators")
    contexts, whole = contexts_of(policy), tree.down(clique_probs(env, policy))
    if contexts == tree.contexts:
        return whole
    place = contexts.within(tree.contexts)
    return jnp.zeros(contexts.num_rows, whole.dtype).at[place].add(whole)
