"""Random worlds, policies and matrices, to put statements to the test."""

from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from natgfn.certify import surrogate
from natgfn.envs import Hypergrid, ParentSets, Triangles
from natgfn.policies import (
    AbstractPolicy,
    Network,
    Tabular,
    Tied,
    forward_probs,
    forward_table,
    masked_softmax,
)
from natgfn.sampling import every_trajectory
from natgfn.statespace import StateSpace, enumerate_states, timed_occupancy

from .structured import conditional_fishers
from .trajectories import PathScores, path_scores

# Worlds and policies.


@cache
def _space(env: Any) -> StateSpace:
    with jax.ensure_compile_time_eval():  # also when a check is being compiled
        return enumerate_states(env)


def grid() -> StateSpace:
    """Several trajectories to most objects."""
    return _space(Hypergrid(side=3, floor=0.1))


def tree() -> StateSpace:
    """One trajectory to each object."""
    return _space(Triangles(nodes=3, beta=0.7))


def ordered_dags() -> StateSpace:
    """One parent set a child, in a fixed node order."""
    return _space(ParentSets())


def random_table(space: StateSpace, key: PRNGKeyArray) -> Tabular:
    return Tabular(jax.random.normal(key, (space.num_inner, space.num_actions)))


def random_network(space: StateSpace, key: PRNGKeyArray, outputs: int | None = None):
    """A shared policy far from uniform."""
    policy = Network(width=4, depth=1)(space, key=key, outputs=outputs)
    return jax.tree.map(lambda x: 3 * x.astype(float) if eqx.is_inexact_array(x) else x, policy)


class Summarised(NamedTuple):
    """A policy on the grid that sees only which moves are open, its summary of a state."""

    paths: PathScores
    occupancies: Float[Array, "steps contexts"]
    r"""$p_t(c)$, a sub-probability at each step."""
    conditional: Float[Array, "contexts p p"]
    r"""$A(c)$; there are more parameters than these have directions."""


def summarised(key: PRNGKeyArray, scale: float = 1.0) -> Summarised:
    """Logits that are linear in the parameters, of size `scale`."""
    space = grid()
    masks, context = np.unique(np.asarray(space.child) >= 0, axis=0, return_inverse=True)
    feature_key, theta_key = jax.random.split(key)
    features = jax.random.normal(feature_key, (*masks.shape, SIZE))
    logits = scale * features @ jax.random.normal(theta_key, (SIZE,)) / SIZE**0.5
    # The padding of trajectories sits in terminal states, whose context does not matter.
    policy = Tied(logits, np.append(context, np.zeros(space.num_terminal, context.dtype)))
    paths = path_scores(space, policy)
    visits = timed_occupancy(space, forward_probs(space, policy))
    return Summarised(
        paths._replace(steps=paths.steps @ features.reshape(-1, SIZE)),
        visits @ jax.nn.one_hot(context, len(masks)),
        conditional_fishers(features, masked_softmax(logits, jnp.asarray(masks))),
    )


def trajectory_law(space: StateSpace, policy: AbstractPolicy):
    """Log-probabilities of all trajectories as a function of the flat parameters, and those."""
    paths = every_trajectory(space)
    params, static = eqx.partition(policy, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(params)

    def log_law(flat):
        table = forward_table(space, eqx.combine(unravel(flat), static))
        steps = table.at[paths.before, paths.actions].get(mode="clip")
        return jnp.sum(jnp.where(paths.live, steps, 0.0), axis=0)

    return log_law, flat


# Matrices.

SIZE = 6


def random_psd(key: PRNGKeyArray):
    """A positive semidefinite matrix of any rank, with eigenvalues over four decades."""
    rotation_key, value_key, rank_key = jax.random.split(key, 3)
    rotation, _ = jnp.linalg.qr(jax.random.normal(rotation_key, (SIZE, SIZE)))
    values = 10 ** jax.random.uniform(value_key, (SIZE,), minval=-3, maxval=1)
    rank = jax.random.randint(rank_key, (), 1, SIZE + 1)
    return rotation * jnp.where(jnp.arange(SIZE) < rank, values, 0.0) @ rotation.T


def random_pair(key: PRNGKeyArray):
    r"""$F$, a surrogate with $\rho_\lambda$ anywhere below 1, and $\lambda$."""
    keys = jax.random.split(key, 4)
    fisher, other = random_psd(keys[0]), random_psd(keys[1])
    damping = 10 ** jax.random.uniform(keys[2], minval=-3, maxval=0)
    # The error is linear in the share of the other matrix, so any size of it can be had.
    whole = surrogate.relative_error(fisher, other, damping)
    share = jnp.minimum(jax.random.uniform(keys[3], minval=0.01, maxval=0.97) / whole, 1.0)
    return fisher, (1 - share) * fisher + share * other, damping


def random_gradients(key: PRNGKeyArray):
    h_key, change_key, size_key = jax.random.split(key, 3)
    h = jax.random.normal(h_key, (SIZE,))
    size = 10 ** jax.random.uniform(size_key, minval=-3, maxval=0)
    return h, h + size * jax.random.normal(change_key, (SIZE,))


def shrunk(rho: float, damping: float = 1e-2):
    r"""$F = I$, a surrogate whose error is all along $h$, and $h$; $\rho_\lambda$ is $|\rho|$."""
    h = jnp.eye(SIZE)[0]
    fisher = jnp.eye(SIZE)
    return fisher, fisher + rho * (1 + damping) * jnp.outer(h, h), h, damping
