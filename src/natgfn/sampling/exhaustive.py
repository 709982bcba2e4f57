"""Every trajectory of a small environment."""

import jax.numpy as jnp
import numpy as np

from ..statespace import StateSpace
from .trajectories import Trajectories

_MOST = 100_000


def every_trajectory(space: StateSpace) -> Trajectories:
    """All trajectories, each once; for environments that have few of them."""
    complete = []
    states, actions = np.zeros((1, 1), np.int32), np.zeros((1, 0), np.int32)
    while len(states):
        here = states[:, -1]
        rows, taken = np.nonzero(space.child[here] >= 0)
        states = np.column_stack([states[rows], space.child[here[rows], taken]])
        actions = np.column_stack([actions[rows], taken.astype(np.int32)])
        ended = states[:, -1] >= space.num_inner
        complete.append((states[ended], actions[ended]))
        states, actions = states[~ended], actions[~ended]
        if len(states) > _MOST:
            raise ValueError(
                f"{type(space.env).__name__} has more than {_MOST:,} trajectories: too many to "
                "list; take a smaller one"
            )
    times = space.max_steps
    padded_states = [np.pad(s, ((0, 0), (0, times + 1 - s.shape[1])), "edge") for s, _ in complete]
    padded_actions = [np.pad(a, ((0, 0), (0, times - a.shape[1]))) for _, a in complete]
    lengths = np.concatenate([np.full(len(a), a.shape[1]) for _, a in complete])
    return Trajectories(
        jnp.asarray(np.concatenate(padded_states).T),
        jnp.asarray(np.concatenate(padded_actions).T),
        jnp.asarray(np.arange(times)[:, None] < lengths),
    )
