r"""The natural gradient in sample space: an $N \times N$ system instead of a $p \times p$ one.

Let $J$ be the $N \times p$ matrix of residual gradients $\nabla \delta_i$. The step
$$\Delta = -\arg\min_v \tfrac1N \sum_i \omega_i\, (\delta_i - J_i v)^2 + \lambda |v|^2
        = -J^\top B\, (B J J^\top B + N \lambda I)^{-1} B\, \delta, \qquad B = \Omega^{1/2},$$
is Gauss-Newton on the batch's residuals. Since the forward part of $\nabla\delta_i$ is the
score of the trajectory, the matrix $J^\top J / N$ restricted to $\theta$ is an unbiased estimate
of the trajectory Fisher, and the step is half the damped natural gradient of squared trajectory
balance. Unlike the per-step form it keeps the cross-time terms of the batch, so that the
states along one trajectory share its residual instead of each correcting all of it: the unit
step is the right one, and there is no rate to choose.

A batch that is small beside the policy says little about it. The proximal form remembers:
$$\phi_k = \arg\min_v \tfrac1N \sum_i \omega_i\, (\delta_i - J_i v)^2
         + \lambda\, |v - \mu\, \phi_{k-1}|_D^2,
  \qquad \theta \leftarrow \theta - (1 - \mu)\, \phi_k,$$
which is the step above for $\mu = 0$ and $D = I$, and SPRING (Goldshlager et al., 2024) for
$D = I$. A diagonal $D$ says how far each parameter may go, which the few rows of a batch cannot;
with Adam's, the step is Adam's for $\lambda \to \infty$ and Gauss-Newton for $\lambda \to 0$.
"""

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float

from ..fisher import Scalar, ScoreFisher
from ..objectives import Batch
from ..policies import Flow


def proximal_step(
    fisher: ScoreFisher, damping: Scalar, centre: Flow | None = None, scale: Flow | None = None
) -> tuple[Flow, Float[Array, " rows"]]:
    r"""$\phi_k$ above, for squared residuals or any penalty (by iterated least squares), and
    $J \phi_k$, how much of each residual it is predicted to take away.

    Args:
        fisher: of whole trajectories, with the residuals of their batch. Where there are too many
            rows for its Gram matrix, as with objectives that have many residuals a trajectory, the
            system is solved by conjugate gradients, with products of $J$ alone.
        damping: $\lambda$.
        centre: $\mu\, \phi_{k-1}$, zero if None.
        scale: the diagonal of $D^{-1}$, ones if None.
    """
    batch, gram = fisher.batch, fisher.gram(scale)
    root = jnp.sqrt(batch.least_squares_weights())
    known = jnp.zeros_like(batch.residuals) if centre is None else batch.push(centre)
    right = root * (batch.residuals - known)
    if gram is None:
        solution = root * _iterate(batch, root, damping, scale, right)
    else:
        system = root[:, None] * gram * root + batch.size * damping * jnp.eye(batch.size)
        solution = root * jsl.cho_solve(jsl.cho_factor(system, lower=True), right)
    step = batch.pull(solution)
    if scale is not None:
        step = jax.tree.map(jnp.multiply, step, scale)
    moved = known + (batch.push(step) if gram is None else gram @ solution)
    return (step if centre is None else jax.tree.map(jnp.add, centre, step)), moved


def _iterate(
    batch: Batch,
    root: Float[Array, " rows"],
    damping: Scalar,
    scale: Flow | None,
    right: Float[Array, " rows"],
) -> Float[Array, " rows"]:
    def product(x):
        step = batch.pull(root * x)
        if scale is not None:
            step = jax.tree.map(jnp.multiply, step, scale)
        return root * batch.push(step) + batch.size * damping * x

    return cg(product, right, tol=_TOLERANCE, maxiter=_ITERATIONS)[0]


_TOLERANCE, _ITERATIONS = 1e-3, 100
"""Of conjugate gradients, in the relative residual."""
