"""The structured regime, approximate: belief propagation on the law of the policy."""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from ..envs import AbstractEnv
from ..fisher import Occupancy
from ..graphical import Contexts, Wiring, propagate
from ..objectives import Batch, Expected
from ..policies import AbstractPolicy, context_probs, contexts_of, require_assignments
from .base import AbstractOccupancy


class Beliefs(AbstractOccupancy):
    r"""$\widetilde p_t^{\mathrm{BP}}(c)$ (`app:computational_regimes_detailed`), for any width.

    The law of the policy is a factor graph with a factor $\pi_t(x_t \mid c_t)$ for each step. It is
    a directed one without evidence, so its messages backwards say nothing, and those forwards are
    settled after as many iterations as a path is long: they always converge. A context is then what
    the marginals of its variables make of it, independent of each other.
    """

    def __call__(
        self, env: AbstractEnv, policy: AbstractPolicy, batch: Batch | Expected | None = None
    ) -> Occupancy:
        env = require_assignments(env, "occupancy.Beliefs")
        contexts, probs = contexts_of(policy), context_probs(env, policy)
        wiring, entries = _wired(contexts)
        rows = entries // probs.shape[1]
        # A context in which nothing is possible needs a law as well, lest it speak backwards.
        never = ~jnp.any(probs > 0, axis=1)
        law = jnp.where(never[rows], 1 / np.bincount(rows)[rows], probs.ravel()[entries])
        found = propagate(
            wiring,
            jnp.log(law),
            damping=0.0,
            tolerance=1e-6,
            max_iterations=contexts.num_steps + 1,
        )
        # What has not converged is not used: a step with it is rejected, and counted.
        beliefs = jnp.where(found.converged, jnp.exp(found.log_factors), jnp.nan)
        weights = jnp.zeros(len(probs), probs.dtype).at[rows].add(beliefs)
        return Occupancy(jnp.arange(weights.size), weights, complete=True, contexts=True)


@lru_cache(maxsize=8)
def _wired(contexts: Contexts) -> tuple[Wiring, Int[np.ndarray, " entries"]]:
    """The factor graph of a policy, and the place of each entry in its table by context."""
    families = zip(contexts.seen, contexts.order, strict=True)
    wiring = Wiring.of(contexts.cards, [(*seen, own) for seen, own in families])
    cards = np.array([contexts.cards[v] for v in contexts.order])[contexts.steps]
    valid = np.arange(contexts.num_values) < cards[:, None]
    return wiring, np.flatnonzero(valid).astype(np.int32)
