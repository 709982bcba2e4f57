"""Conjugate gradients: products with the Fisher only, for policies of any kind and size."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from ..errors import require_whole
from ..fisher import Fisher, LinearisedFisher, Scalar
from .base import AbstractSolver, Parameters, require_positive
from .live import on_live_rows


class ConjugateGradientsState(NamedTuple):
    """What the next solve starts from, and what the last one achieved."""

    direction: Float[Array, " p"]
    """The last solution, flattened; zero unless solves start warm."""
    scales: Float[Array, " arrays"]
    """The mean diagonal of the Fisher in each parameter array."""
    solves: Int[Array, ""]
    residual: Float[Array, ""]
    r"""$|(F + \lambda I) v - h| / |h|$, by a product of its own."""
    iterations: Int[Array, ""]


class ConjugateGradients(AbstractSolver):
    r"""$(F + \lambda I)\, v = h$ by conjugate gradients, preconditioned or not.

    The preconditioner is one number for each array of parameters (`app:sachs_dag_details`): the
    mean of the diagonal of $F$ there, plus $\lambda$. Since $R^\top y$ of random signs $y$ has
    covariance $F = R^\top R$, the mean of its squares estimates that, and is never negative.

    The loop is our own: lineax gives NaN where $p^\top (F + \lambda I) p$ is below
    $100\, p\, \epsilon\, |r|^2$, which is most of the time in float32 with a thousand parameters,
    and JAX's says neither how many iterations it took nor how far it came.

    Attributes:
        iterations: at most so many.
        tolerance: of the relative residual, at which to stop.
        warm_start: whether to start from the last solution instead of zero.
        preconditioner: whether to use one.
        probes: random vectors for each estimate of the preconditioner.
        decay: of the moving average of these estimates.
        refresh: solves from one estimate to the next.
    """

    iterations: int = 20
    tolerance: float = 1e-5
    warm_start: bool = False
    preconditioner: bool = False
    probes: int = 2
    decay: float = 0.9
    refresh: int = 10

    def __check_init__(self):
        for name in ("iterations", "probes", "refresh"):
            require_whole(name, getattr(self, name), 1)
        for name in ("tolerance", "decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")

    def init(self, params: Parameters) -> ConjugateGradientsState:
        flat, zero = ravel_pytree(params)[0], jnp.array(0)
        scales = jnp.zeros(len(jax.tree.leaves(params)), flat.dtype)
        residual = jnp.zeros((), flat.dtype)
        return ConjugateGradientsState(jnp.zeros_like(flat), scales, zero, residual, zero)

    def solve(
        self, fisher: Fisher, h: Parameters, damping: Scalar, state: PyTree = None
    ) -> tuple[Parameters, PyTree]:
        before = self.init(h) if state is None else state
        flat, unravel = ravel_pytree(h)

        def on(fisher):
            line = fisher.linearise()

            def product(v):
                """$(F + \\lambda I) v$ and $v^\\top (F + \\lambda I) v$."""
                root = line.root(unravel(v))
                full = ravel_pytree(line.transpose(root))[0] + damping * v
                return full, jnp.sum(root**2) + damping * v @ v

            scales = before.scales
            if self.preconditioner:
                scales = self._scales(line, before)
            inverse = _spread(1 / (scales + damping), h) if self.preconditioner else 1.0
            v, iterations = self._iterate(product, flat, inverse, before.direction)
            left, size = jnp.linalg.norm(product(v)[0] - flat), jnp.linalg.norm(flat)
            residual = jnp.where(size > 0, left / jnp.where(size > 0, size, 1), 0)
            kept = v if self.warm_start else before.direction
            return v, ConjugateGradientsState(kept, scales, before.solves + 1, residual, iterations)

        v, after = on_live_rows(on, fisher)
        return unravel(v), after

    def _iterate(self, product, h, inverse, start):
        enough = self.tolerance**2 * (h @ h)

        def unfinished(carry):
            _, r, _, _, k = carry
            return (k < self.iterations) & (r @ r > enough)

        def step(carry):
            v, r, p, gamma, k = carry
            full, curvature = product(p)
            alpha = gamma / curvature
            v, r = v + alpha * p, r - alpha * full
            z = inverse * r
            after = r @ z
            return v, r, z + after / gamma * p, after, k + 1

        r = h - product(start)[0] if self.warm_start else h
        z = inverse * r
        v, _, _, _, k = jax.lax.while_loop(unfinished, step, (start, r, z, r @ z, jnp.array(0)))
        return v, k

    def _scales(self, line: LinearisedFisher, state: ConjugateGradientsState):
        """Due every so often: a moving average that starts as a plain mean."""
        number = state.solves // self.refresh

        def estimate():
            shape = jax.eval_shape(lambda: line.root(line.pull(line.probs))).shape
            key = jax.random.fold_in(jax.random.key(0), number)
            signs = jax.random.rademacher(key, (self.probes, *shape), line.probs.dtype)
            scores = jax.lax.map(line.transpose, signs)
            found = jnp.stack([jnp.mean(x**2) for x in jax.tree.leaves(scores)])
            decay = jnp.minimum(1 - 1 / (number + 1), self.decay)
            return decay * state.scales + (1 - decay) * found

        due = state.solves % self.refresh == 0
        return jax.lax.cond(due, estimate, lambda: state.scales)

    def check_damping(self, damping: float) -> None:
        require_positive(damping)


def _spread(
    values: Float[Array, " arrays"], like: PyTree[Float[Array, "..."]]
) -> Float[Array, " p"]:
    """Each value at all entries of its array."""
    leaves = jax.tree.leaves(like)
    return jnp.concatenate([jnp.full(x.size, v) for x, v in zip(leaves, values, strict=True)])
