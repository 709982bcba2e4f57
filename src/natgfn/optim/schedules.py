"""Rates and dampings that change over a run.

A number may be given as it is, as one of these, which a configuration can name, or as any optax
schedule: a function of the updates made so far.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias, TypeGuard

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..errors import require_whole
from ..fisher import Scalar


class AbstractSchedule(eqx.Module):
    """A number for each update."""

    @abstractmethod
    def __call__(self, step: Int[Array, ""] | int) -> Scalar:
        """The number after so many updates."""


Rate: TypeAlias = float | AbstractSchedule | Callable[[Any], Any]
"""A number, or one for each update."""


class Cosine(AbstractSchedule):
    """From `start` down to `end` like half a cosine, and `end` from then on.

    Attributes:
        start: the first value.
        steps: updates that it takes.
        end: the last value.
    """

    start: float
    steps: int
    end: float = 0.0

    def __check_init__(self):
        _check(self)

    def __call__(self, step: Int[Array, ""] | int) -> Scalar:
        share = (1 + jnp.cos(jnp.pi * _share(self, step))) / 2
        return jnp.asarray(self.end + (self.start - self.end) * share)


class Linear(AbstractSchedule):
    """From `start` to `end` in equal steps, and `end` from then on.

    Attributes:
        start: the first value.
        steps: updates that it takes.
        end: the last value.
    """

    start: float
    steps: int
    end: float = 0.0

    def __check_init__(self):
        _check(self)

    def __call__(self, step: Int[Array, ""] | int) -> Scalar:
        return jnp.asarray(self.start + (self.end - self.start) * _share(self, step))


def takes_steps(part: Any) -> TypeGuard[Cosine | Linear]:
    """Whether a part of a rule is a schedule that extends over a number of updates."""
    return isinstance(part, Cosine | Linear)


def _share(schedule: Cosine | Linear, step: Int[Array, ""] | int) -> Scalar:
    """How much of it is over, from 0 to 1; `steps` may be a value of a compiled program."""
    return jnp.minimum(step / schedule.steps, 1.0)


def _check(schedule: Cosine | Linear) -> None:
    require_whole("steps", schedule.steps, 1)
    for name in ("start", "end"):
        if not 0 <= (value := getattr(schedule, name)) < float("inf"):
            raise ValueError(f"{name} must be zero or positive and finite, got {value}")


def at(rate: Rate | Float[Array, ""], step: Int[Array, ""] | int) -> Scalar:
    """The number for an update."""
    return rate(step) if callable(rate) else rate
