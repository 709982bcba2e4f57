# %% [markdown]
# # An environment of your own
# A knapsack, packed item by item. Check it first, or run it:
#
#     natgfn check examples.own_environment:Knapsack
#     python examples/own_environment.py

# %%
from itertools import product
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

import natgfn as ng
from natgfn.envs import AbstractEnv

WEIGHTS = np.array([1, 2, 3, 4, 5, 6, 7, 8])
VALUES = np.array([2.0, 3.0, 4.0, 7.0, 6.0, 9.0, 9.0, 12.0])


# %% [markdown]
# A state identifies what is being built.


# %%
class Pack(NamedTuple):
    """What is in the knapsack: integers or booleans, of fixed shape."""

    chosen: Bool[Array, " items"]
    closed: Bool[Array, ""]


# %% [markdown]
# The environment: ten small methods, pure functions of one state. `step` and `undo` are inverse to
# each other, and masks say which actions are valid.


# %%
class Knapsack(AbstractEnv):
    """Sets of items that fit, good ones more often: $R(x) = exp(value(x) / temperature)$.

    Action `i` puts item `i` in; the last action closes the knapsack.
    """

    capacity: int = 15
    temperature: float = 3.0

    def __check_init__(self):
        if self.capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {self.capacity}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")

    @property
    def num_actions(self) -> int:
        return len(WEIGHTS) + 1

    @property
    def max_steps(self) -> int:
        return len(WEIGHTS) + 1

    def init(self) -> Pack:
        return Pack(jnp.zeros(len(WEIGHTS), bool), jnp.array(False))

    def _item(self, action) -> Bool[Array, " items"]:
        return jnp.arange(len(WEIGHTS)) == action

    def step(self, state: Pack, action) -> Pack:
        return Pack(state.chosen | self._item(action), jnp.asarray(action == len(WEIGHTS)))

    def undo(self, state: Pack, action) -> Pack:
        return Pack(state.chosen & ~self._item(action), jnp.array(False))

    def forward_mask(self, state: Pack) -> Bool[Array, " actions"]:
        room = self.capacity - jnp.sum(WEIGHTS * state.chosen)
        fits = ~state.chosen & (jnp.asarray(WEIGHTS) <= room)
        return ~state.closed & jnp.append(fits, True)

    def backward_mask(self, state: Pack) -> Bool[Array, " actions"]:
        # Any item may have been the last to go in; a closed knapsack was just closed.
        return jnp.append(~state.closed & state.chosen, state.closed)

    def is_terminal(self, state: Pack) -> Bool[Array, ""]:
        return state.closed

    def observe(self, state: Pack) -> Array:
        return state.chosen.astype(float)

    def log_reward(self, state: Pack) -> Array:
        return jnp.sum(VALUES * state.chosen) / self.temperature

    def objects(self) -> Pack:
        """Optional: with it, `natgfn check` tells whether everything can be reached."""
        every = np.array(list(product([False, True], repeat=len(WEIGHTS))))
        chosen = every[every @ WEIGHTS <= self.capacity]
        return Pack(jnp.asarray(chosen), jnp.ones(len(chosen), bool))


# %% [markdown]
# Train it, and draw from it: good packs come up more often.

# %%
if __name__ == "__main__":
    run = ng.train(Knapsack(), updates=100, progress=False)
    for chosen in np.asarray(run.sample(5).chosen):
        items = ", ".join(map(str, np.flatnonzero(chosen))) or "nothing"
        print(f"value {VALUES @ chosen:4.0f}  weight {WEIGHTS @ chosen:2d}  items {items}")
    print(f"KL divergence of the sampler from the target: {run.metrics['kl'][-1, 0]:.2e}")
