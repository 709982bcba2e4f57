"""A second sampler that learns beside the first."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from ..optim import AbstractRule
from ..policies import Flow


class Companion(NamedTuple):
    """A flow and the state of its optimiser."""

    flow: Flow
    optimiser: PyTree

    @classmethod
    def start(cls, flow: Flow, rule: AbstractRule) -> "Companion":
        parameters: Any = eqx.filter(flow, eqx.is_inexact_array)
        return cls(flow, rule.transform().init(parameters))

    def improve(self, rule: AbstractRule, loss: Callable[[Flow], Float[Array, ""]]) -> "Companion":
        """After one step of a rule that follows the gradient alone."""
        params, static = eqx.partition(self.flow, eqx.is_inexact_array)
        gradient = jax.grad(lambda params: loss(eqx.combine(params, static)))(params)
        updates, optimiser = rule.transform().update(gradient, self.optimiser, params)
        return Companion(eqx.apply_updates(self.flow, updates), optimiser)
