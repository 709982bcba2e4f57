r"""The exact solve in the space of the rows of the Fisher's root, where they are few.

With $F = R^\top R$ (`LinearisedFisher`), Woodbury's identity is
$$(F + \lambda I)^{-1} h
  = \tfrac1\lambda \bigl(h - R^\top (R R^\top + \lambda I)^{-1} R\, h\bigr),$$
a system as large as the states times the actions (or the states, with sampled actions), however
many parameters there are. Unlike `sample_space`, whose rows are trajectories, it is the solve of
the per-step Fisher, exact in the action.
"""

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..fisher import Fisher, Occupancy, Scalar
from .base import AbstractSolver, Parameters, require_positive
from .live import on_live_rows


class Rows(AbstractSolver):
    r"""Cholesky factorisation of $R R^\top + \lambda I$, of any policy."""

    def solve(
        self, fisher: Fisher, h: Parameters, damping: Scalar, state: PyTree = None
    ) -> tuple[Parameters, PyTree]:
        flat, unravel = ravel_pytree(h)

        def on(fisher):
            rows = root_rows(fisher)
            with jax.default_matmul_precision("highest"):
                gram = rows @ rows.T + damping * jnp.eye(len(rows), dtype=rows.dtype)
                y = jsl.cho_solve(jsl.cho_factor(gram, lower=True), rows @ flat)
                return (flat - y @ rows) / damping

        return unravel(on_live_rows(on, fisher)), state

    def check_damping(self, damping: float) -> None:
        require_positive(damping)


def root_rows(fisher: Fisher) -> Float[Array, "rows p"]:
    """$R$. A row depends on one state only, so each is made from that state alone."""
    occupancy = fisher.occupancy
    each = 1 if occupancy.actions is not None else fisher.env.num_actions

    def of_state(visit):
        alone = Occupancy(*jax.tree.map(lambda x: x[None], visit))
        line = Fisher(fisher.env, fisher.policy, alone).linearise()
        unit = jnp.eye(each, dtype=line.probs.dtype)[:, None]
        return jax.vmap(lambda y: ravel_pytree(line.transpose(y))[0])(unit)

    visits = (occupancy.states, occupancy.weights, occupancy.actions)
    rows = jax.lax.map(of_state, visits, batch_size=64)
    return jnp.reshape(rows, (-1, rows.shape[-1]))
