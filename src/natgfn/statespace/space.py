"""An environment enumerated: its states by number, its edges as tables."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..envs import AbstractEnv, Action, State


class StateSpace(AbstractEnv):
    """An enumerated environment, and itself an environment whose states are numbers.

    Steps and masks are look-ups. The numbers 0 to `num_inner - 1` are the non-terminal
    states, sorted so that each comes after all its parents; the terminal states follow.
    Arrays are NumPy, rewards in float64; under `jit` they take JAX's precision.

    Attributes:
        env: the environment that was enumerated.
        states: its states, along a leading axis.
        child: the state each action leads to, -1 where it is not valid.
        parent: the state each action came from, -1 where there is none; unlike
            `env.backward_mask` it lists only parents that can be reached from the source.
        level: the length of the longest path from the source.
        log_rewards: $\\log R$ of the terminal states.
        modes: which of them are modes: those that the environment names, or the best.
        arrivals: the edges into each non-terminal state and into each terminal state, as
            `source * num_actions + action`; one past the last edge where there are fewer.
        chunks: where each block of the dynamic programme starts (`programming.py`).
        chunk_size: how many states a block has.
        num_levels: one more than the longest trajectory's length.
        graded: whether every edge goes up by one level, so that level and time agree.
    """

    env: AbstractEnv
    states: State
    child: Int[np.ndarray, "inner actions"]
    parent: Int[np.ndarray, "states actions"]
    level: Int[np.ndarray, " states"]
    log_rewards: Float[np.ndarray, " terminals"]
    modes: Bool[np.ndarray, " terminals"]
    arrivals: tuple[Int[np.ndarray, "inner most"], Int[np.ndarray, "terminals most_"]]
    chunks: Int[np.ndarray, " chunks"]
    chunk_size: int = eqx.field(static=True)
    num_levels: int = eqx.field(static=True)
    graded: bool = eqx.field(static=True)

    @property
    def num_actions(self) -> int:
        return self.env.num_actions

    @property
    def max_steps(self) -> int:
        return self.num_levels - 1

    @property
    def num_inner(self) -> int:
        return self.child.shape[0]

    @property
    def num_terminal(self) -> int:
        return self.log_rewards.shape[0]

    @property
    def num_states(self) -> int:
        return self.num_inner + self.num_terminal

    @property
    def is_tree(self) -> bool:
        """Whether a single path leads to each non-terminal state."""
        return self.arrivals[0].shape[1] == 1

    @property
    def terminals(self) -> State:
        """The terminal states of the environment, in the order of `log_rewards`."""
        return jax.tree.map(lambda x: x[self.num_inner :], self.states)

    @property
    def log_target(self) -> Float[np.ndarray, " terminals"]:
        """$\\log \\pi(x) = \\log R(x) - \\log Z$, in float64."""
        return self.log_rewards - self.log_z

    @property
    def log_z(self) -> float:
        """$\\log \\sum_x R(x)$."""
        return float(np.logaddexp.reduce(self.log_rewards))

    def init(self) -> Int[Array, ""]:
        return jnp.array(0, jnp.int32)

    def step(self, state: Int[Array, ""], action: Action) -> Int[Array, ""]:
        return jnp.asarray(self.child)[state, action]

    def undo(self, state: Int[Array, ""], action: Action) -> Int[Array, ""]:
        return jnp.asarray(self.parent)[state, action]

    def forward_mask(self, state: Int[Array, ""]) -> Bool[Array, " actions"]:
        # A terminal number is out of range of `child`: the fill value masks every action.
        return jnp.asarray(self.child).at[state].get(mode="fill", fill_value=-1) >= 0

    def backward_mask(self, state: Int[Array, ""]) -> Bool[Array, " actions"]:
        return jnp.asarray(self.parent)[state] >= 0

    def is_terminal(self, state: Int[Array, ""]) -> Bool[Array, ""]:
        return state >= self.num_inner

    def observe(self, state: Int[Array, ""]) -> Float[Array, " features"]:
        return self.env.observe(self._original(state))

    def log_partial(self, state: Int[Array, ""]) -> Float[Array, ""]:
        return self.env.log_partial(self._original(state))

    def _original(self, state: Int[Array, ""]) -> State:
        return jax.tree.map(lambda x: jnp.asarray(x)[state], self.states)

    def log_reward(self, state: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.asarray(self.log_rewards)[state - self.num_inner]


def require_space(env: AbstractEnv, what: str, instead: str = "occupancy.Sampled") -> StateSpace:
    """`env`, if it has been enumerated; else a line that names what works without."""
    if isinstance(env, StateSpace):
        return env
    raise ValueError(
        f"{what} needs every state, and {type(env).__name__} is not enumerated: use {instead}, or "
        "insist on a list of states with enumerate=True"
    )
