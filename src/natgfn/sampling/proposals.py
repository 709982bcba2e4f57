"""Laws that trajectories are drawn from, or judged under: reshaped forward policies."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..errors import require_whole


class AbstractProposal(eqx.Module):
    r"""The proposal $\mu$ or the reference $\nu$ of `alg:natgrad_gflownet`."""

    @abstractmethod
    def __call__(
        self, log_pf: Float[Array, "*batch actions"], mask: Bool[Array, "*batch actions"]
    ) -> Float[Array, "*batch actions"]:
        """Log-probabilities of the actions, from those of the forward policy."""

    def at(self, step: Int[Array, ""]) -> "AbstractProposal":
        """The law after so many updates; the same by default."""
        return self


class OnPolicy(AbstractProposal):
    """The forward policy itself."""

    def __call__(
        self, log_pf: Float[Array, "*batch actions"], mask: Bool[Array, "*batch actions"]
    ) -> Float[Array, "*batch actions"]:
        return log_pf


class UniformMixture(AbstractProposal):
    r"""$(1 - \varepsilon)\, \pi + \varepsilon\, \mathrm{uniform}$ over the valid actions.

    Attributes:
        epsilon: $\varepsilon$, at first.
        fade: updates in which it falls to zero, in equal steps; it stays by default.
    """

    epsilon: float = 0.1
    fade: int | None = None

    def __check_init__(self):
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon must be from 0 to 1, got {self.epsilon}")
        if self.fade is not None:
            require_whole("fade", self.fade, 1)

    def at(self, step: Int[Array, ""]) -> "UniformMixture":
        if self.fade is None:
            return self
        left = self.epsilon * jnp.clip(1 - step / self.fade, 0.0, 1.0)
        return eqx.tree_at(lambda mixture: mixture.epsilon, self, left)

    def __call__(
        self, log_pf: Float[Array, "*batch actions"], mask: Bool[Array, "*batch actions"]
    ) -> Float[Array, "*batch actions"]:
        count = jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
        mixed = (1 - self.epsilon) * jnp.exp(log_pf) + self.epsilon / count
        return jnp.where(mask, jnp.log(mixed), -jnp.inf)
