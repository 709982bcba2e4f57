"""What an environment is: an acyclic construction of objects, one action at a time."""

from abc import abstractmethod
from typing import Any, Protocol, TypeAlias, runtime_checkable

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int

State: TypeAlias = Any
"""A pytree of fixed-shape integer (or boolean) arrays that identifies a state."""

Action: TypeAlias = Int[Array, ""] | int
"""The number of an action, from 0 to `num_actions` - 1."""


class AbstractEnv(eqx.Module):
    """A pointed acyclic graph of states with a reward on its terminal states.

    Every method is pure and handles one state; callers use `jax.vmap`. Stopping is an
    action like any other, and leads to a terminal copy of the state. An action and the
    state it leads to determine the state it came from: that is what `undo` returns.
    """

    @property
    @abstractmethod
    def num_actions(self) -> int:
        """How many actions there are; masks say which are valid where."""

    @property
    @abstractmethod
    def max_steps(self) -> int:
        """The length of the longest trajectory."""

    @abstractmethod
    def init(self) -> State:
        """The source $s_0$."""

    @abstractmethod
    def step(self, state: State, action: Action) -> State:
        """The child along a valid action."""

    @abstractmethod
    def undo(self, state: State, action: Action) -> State:
        """The parent from which `action` leads to `state`."""

    @abstractmethod
    def forward_mask(self, state: State) -> Bool[Array, " actions"]:
        """The actions that can be taken."""

    @abstractmethod
    def backward_mask(self, state: State) -> Bool[Array, " actions"]:
        """The actions that can have been the last one; all of them are parents under `undo`."""

    @abstractmethod
    def is_terminal(self, state: State) -> Bool[Array, ""]:
        """Whether the object is complete."""

    @abstractmethod
    def observe(self, state: State) -> Float[Array, " features"]:
        """The state as a network sees it."""

    @abstractmethod
    def log_reward(self, state: State) -> Float[Array, ""]:
        """$\\log R(x)$ of a terminal state; finite for training, but the rest takes -inf too."""

    def log_partial(self, state: State) -> Float[Array, ""]:
        """The log-reward of what has been built so far, if there is such a thing.

        Only forward-looking objectives ask for it.
        """
        raise ValueError(
            f"{type(self).__name__} gives no reward to partial objects, and forward-looking "
            "objectives need one: define `log_partial(state)`"
        )


class Identical:
    """An environment as a key: equal to itself alone, so that its arrays are never compared."""

    def __init__(self, env: AbstractEnv):
        self.env = env

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identical) and self.env is other.env

    def __hash__(self) -> int:
        return id(self.env)


@runtime_checkable
class ListsObjects(Protocol):
    """An environment that can list its objects without constructing them.

    `natgfn check` compares the list with what can be reached.
    """

    def objects(self) -> State:
        """Every terminal state with positive reward, along a leading axis."""
        ...


@runtime_checkable
class HasModes(Protocol):
    """An environment that says which objects are its modes; else those of highest reward are."""

    def is_mode(self, state: State) -> Bool[Array, ""]:
        """Whether a terminal state is one."""
        ...


@runtime_checkable
class CountsModes(Protocol):
    """An environment with a given number of modes, each found by any object near enough to it."""

    @property
    def num_modes(self) -> int:
        """How many there are."""
        ...

    def finds(self, state: State) -> Bool[Array, " modes"]:
        """Which of them a terminal state counts as finding."""
        ...


@runtime_checkable
class HasDistance(Protocol):
    """An environment that says how different two objects are; else they are equal or not."""

    def distance(self, one: State, other: State) -> Float[Array, ""]:
        """Between two terminal states: zero for the same object, symmetric."""
        ...


@runtime_checkable
class HasTestSet(Protocol):
    """An environment with objects on which every sampler of it is judged."""

    def test_set(self, num: int) -> State:
        """At most so many terminal states along a leading axis, the same in every call."""
        ...


@runtime_checkable
class HasTokens(Protocol):
    """An environment whose states are sequences of tokens; `policies.Transformer` reads them."""

    @property
    def num_tokens(self) -> int:
        """How many different ones there are."""
        ...

    def tokens(self, state: State) -> Int[Array, " positions"]:
        """The token at each position, from 0; -1 where there is none."""
        ...


@runtime_checkable
class KnowsLogZ(Protocol):
    """An environment that may know its normalising constant, as every enumerated one does."""

    @property
    def log_z(self) -> float | None:
        r"""$\log \sum_x R(x)$; None where this one is not known."""
        ...


@runtime_checkable
class OnGrid(Protocol):
    """An environment whose states have integer coordinates; `occupancy.Factorised` needs them."""

    @property
    def sides(self) -> tuple[int, ...]:
        """The number of values of each coordinate."""
        ...

    def coordinates(self, state: State) -> Int[Array, " dims"]:
        """The coordinates of a state, each from 0 to its side minus 1."""
        ...
