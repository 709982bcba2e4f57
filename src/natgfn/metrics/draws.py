r"""Objects drawn with a trajectory to each, on any environment, enumerated or not.

A trajectory $\tau$ to the object $x$ has the weight
$$w = \frac{R(x)\, P_B(\tau \mid x)}{P_F(\tau)}.$$
Drawn from the forward policy,
$$E \log w \le \log E\, w = \log Z, \qquad
  \log Z - E \log w = \mathrm{KL}\bigl(P_F(\tau) \,\big\|\, R(x)\, P_B(\tau \mid x) / Z\bigr);$$
drawn from $P_B(\cdot \mid x)$, it gives the terminal law $q(x) = E[P_F(\tau) / P_B(\tau \mid x)]$.
All of it needs a $P_B$ that is normalised.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..envs import AbstractEnv, State
from ..policies import Flow
from ..sampling import OnPolicy, Trajectories, log_probs, rollback, rollout
from ..statespace import StateSpace, pack

MOST = 2**24
"""Bytes of the states and logits of the trajectories that are drawn together, at most. The
activations of a network can be ten times as many."""


class Draws(eqx.Module):
    r"""Objects with a trajectory to each; numbers in float64.

    Attributes:
        objects: terminal states along a leading axis.
        log_rewards: $\log R(x)$.
        log_ratios: $\log P_B(\tau \mid x) - \log P_F(\tau)$.
        lengths: steps of the trajectories.
    """

    objects: State
    log_rewards: Float[np.ndarray, " n"]
    log_ratios: Float[np.ndarray, " n"]
    lengths: Float[np.ndarray, " n"]

    @property
    def log_weights(self) -> Float[np.ndarray, " n"]:
        r"""$\log w$."""
        return self.log_rewards + self.log_ratios


def draw(env: AbstractEnv, flow: Flow, num: int, *, key: PRNGKeyArray) -> Draws:
    """So many trajectories from the forward policy, in batches that bound the memory."""
    batches, size = _batches(env, num)
    keys = jax.random.split(key, batches)
    return _joined([_forwards(env, flow, size, k) for k in keys], num)


def draw_back(env: AbstractEnv, flow: Flow, objects: State, *, key: PRNGKeyArray) -> Draws:
    """A trajectory from the backward policy to each of `objects`, in batches again."""
    num = len(jax.tree.leaves(objects)[0])
    batches, size = _batches(env, num)
    places = np.resize(np.arange(num), (batches, size))
    found = [
        _backwards(env, flow, pick(objects, some), k)
        for some, k in zip(places, jax.random.split(key, batches), strict=True)
    ]
    return _joined(found, num)


def log_terminal_law(
    env: AbstractEnv, flow: Flow, objects: State, paths: int = 10, *, key: PRNGKeyArray
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    r"""Estimates of $\log q(x)$, from `paths` trajectories back from each object, and $\log R(x)$.

    That of $q$ has no bias, so its logarithm is too low on average; on a tree one path is exact.
    """
    repeated = jax.tree.map(lambda x: np.repeat(np.asarray(x), paths, axis=0), objects)
    draws = draw_back(env, flow, repeated, key=key)
    return log_mean_exp(-draws.log_ratios.reshape(-1, paths).T), draws.log_rewards[::paths]


def _batches(env: AbstractEnv, num: int) -> tuple[int, int]:
    """How many batches, and their size: equal, so that one program serves all of them."""
    leaves = jax.tree.leaves(jax.eval_shape(env.init))
    state = sum(x.size * x.dtype.itemsize for x in leaves)
    each = (env.max_steps + 1) * (state + 4 * env.num_actions)
    batches = min(num, math.ceil(num * each / MOST))
    return batches, math.ceil(num / batches)


@eqx.filter_jit
def _forwards(env: AbstractEnv, flow: Flow, num: int, key: PRNGKeyArray):
    return _evaluated(env, flow, rollout(env, flow.forward, OnPolicy(), num, key=key))


@eqx.filter_jit
def _backwards(env: AbstractEnv, flow: Flow, objects: State, key: PRNGKeyArray):
    return _evaluated(env, flow, rollback(env, flow.backward, objects, key=key))


def _evaluated(
    env: AbstractEnv, flow: Flow, paths: Trajectories
) -> tuple[State, Float[Array, "3 n"]]:
    probs = log_probs(env, flow, paths)
    log_rewards = jax.vmap(env.log_reward)(paths.last)
    return paths.last, jnp.stack([log_rewards, probs.backward - probs.forward, paths.lengths])


def _joined(batches: list[tuple[State, Array]], num: int) -> Draws:
    objects, numbers = zip(*batches, strict=True)
    rows = np.concatenate(numbers, axis=1, dtype=np.float64)[:, :num]
    return Draws(jax.tree.map(lambda *x: np.concatenate(x)[:num], *objects), *rows)


def log_mean_exp(values: Float[np.ndarray, "n *k"]) -> Float[np.ndarray, "*k"]:
    """The logarithm of the mean of exponentials, over the first axis."""
    from scipy.special import logsumexp  # takes long to import

    return np.asarray(logsumexp(values, axis=0) - np.log(len(values)))


# States along a leading axis.


def pick(states: State, places: np.ndarray) -> State:
    """Those at some places."""
    return jax.tree.map(lambda x: np.asarray(x)[places], states)


def as_names(states: State) -> np.ndarray:
    """Each as one string of bytes, shape `[n]`."""
    rows = pack(states)
    return rows.view(f"V{rows.dtype.itemsize * rows.shape[1]}")[:, 0]


def original(env: AbstractEnv, states: State) -> tuple[AbstractEnv, State]:
    """The environment that was enumerated, and its states from their numbers; if one was."""
    return (env.env, pick(env.states, states)) if isinstance(env, StateSpace) else (env, states)


def numbered(env: AbstractEnv, objects: State) -> State:
    """Terminal states of that environment as states of `env`: the inverse of `original`."""
    if not isinstance(env, StateSpace):
        return objects
    known = env.terminals
    wanted = as_names(jax.tree.map(lambda x, y: np.asarray(x, y.dtype), objects, known))
    names, number = np.unique(as_names(known), return_index=True)
    place = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    if (names[place] != wanted).any():
        raise ValueError("an object was not among those enumerated; give terminal states only")
    return (env.num_inner + number[place]).astype(np.int32)
