r"""Fisher-Rao geometry of finite laws.

`app:prelim_natgrad_properties` and `app:prelim_discrete_geometry`.

A model is a function from a parameter vector to the log-probabilities of a finite set: a
categorical, an exponential family, or all trajectories of a sampler.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from natgfn.certify import Bound, Identity
from natgfn.fisher import Scalar

Vector = Float[Array, " p"]
LogLaw = Callable[[Vector], Float[Array, " outcomes"]]


def law_fisher(log_law: LogLaw, theta: Vector) -> Float[Array, "p p"]:
    """`eq:prelim_discrete_fisher`."""
    scores = jax.jacrev(log_law)(theta)
    return scores.T @ (jnp.exp(log_law(theta))[:, None] * scores)


def kl_expansion(log_law: LogLaw, theta: Vector, change: Vector) -> tuple[Array, Array]:
    r"""$\mathrm{KL}(q_\theta \| q_{\theta+\Delta})$ and $\tfrac12 \Delta^\top F \Delta$.

    They agree to second order (`eq:prelim_kl_expansion`).
    """
    before, after = log_law(theta), log_law(theta + change)
    divergence = jnp.sum(jnp.exp(before) * (before - after))
    return divergence, change @ law_fisher(log_law, theta) @ change / 2


def natural_gradient(
    fisher: Float[Array, "p p"], h: Vector, *, cutoff: float = 1e-10
) -> Float[Array, " p"]:
    r"""$F^\dagger h$ (`eq:prelim_natgrad`); eigenvalues below `cutoff` of the largest are zero."""
    return jnp.linalg.pinv(fisher, rtol=cutoff, hermitian=True) @ h


class Identifiable(NamedTuple):
    r"""The range $\mathcal U$ of a Fisher."""

    basis: Float[Array, "p p"]
    """Orthonormal columns that span it, and columns of zeros, so that its rank may be traced."""
    floor: Float[Array, ""]
    r"""$\mu_+(F)$, the smallest positive eigenvalue."""

    def restrict(self, matrix: Float[Array, "p p"]) -> Float[Array, "p p"]:
        r"""$Q^\top A Q$, with $\mu_+(F)$ on the diagonal for the columns of zeros."""
        rest = 1.0 - jnp.sum(self.basis**2, axis=0)
        return self.basis.T @ matrix @ self.basis + self.floor * jnp.diag(rest)


def identifiable(fisher: Float[Array, "p p"], *, cutoff: float = 1e-10) -> Identifiable:
    """The range of a Fisher; eigenvalues below `cutoff` of the largest are zero."""
    values, vectors = jnp.linalg.eigh(fisher)
    kept = values > cutoff * values[-1]
    return Identifiable(jnp.where(kept, vectors, 0.0), jnp.min(jnp.where(kept, values, jnp.inf)))


def trust_region_bound(
    fisher: Float[Array, "p p"], h: Vector, change: Vector, radius: Scalar
) -> Bound:
    r"""What a step in the trust region of `eq:prelim_trust_region` gains to first order.

    With $\tfrac12 \Delta^\top F \Delta \le \varepsilon$ it is at most
    $\sqrt{2 \varepsilon\, h^\top F^\dagger h}$, which $F^\dagger h$ attains. `change` is scaled to
    the edge of the region.
    """
    scaled = change * jnp.sqrt(2 * radius / (change @ fisher @ change))
    return Bound(h @ scaled, jnp.sqrt(2 * radius * (h @ natural_gradient(fisher, h))))


def induced_tangent(
    log_law: LogLaw, objective: Callable[[Array], Array], theta: Vector
) -> Float[Array, " outcomes"]:
    r"""How the natural gradient moves the law: $\mathrm d \log q$ along $F^\dagger h$."""
    h = jax.grad(lambda t: objective(log_law(t)))(theta)
    direction = natural_gradient(law_fisher(log_law, theta), h)
    return jax.jvp(log_law, (theta,), (direction,))[1]


def reparameterisation(
    log_law: LogLaw,
    objective: Callable[[Array], Array],
    coordinates: Callable[[Array], Vector],
    place: Float[Array, " q"],
) -> Identity:
    r"""The natural gradient moves the law in the same way in any coordinates $\theta(\vartheta)$.

    Redundant coordinates included: there only this tangent vector is invariant, not the
    parameter change that represents it (`eq:appendix_fisher_reparam`).
    """
    return Identity(
        induced_tangent(lambda x: log_law(coordinates(x)), objective, place),
        induced_tangent(log_law, objective, coordinates(place)),
    )


def local_descent(
    log_law: LogLaw, objective: Callable[[Array], Array], theta: Vector, rate: Scalar
) -> Bound:
    r"""The descent of a natural step of length $\eta$: promised at most what is achieved.

    $L$ is the least constant for which `eq:appendix_fisher_smooth` holds on the segment, by its
    second derivative at 65 points.
    """

    def value(t):
        return objective(log_law(t))

    fisher, h = law_fisher(log_law, theta), jax.grad(value)(theta)
    direction = natural_gradient(fisher, h)
    speed = h @ direction

    def second_derivative(t):
        along = lambda x: jax.jvp(value, (x,), (direction,))[1]  # noqa: E731
        return jax.jvp(along, (theta - t * direction,), (direction,))[1]

    curvatures = jax.vmap(second_derivative)(rate * jnp.linspace(0.0, 1.0, 65))
    smoothness = jnp.max(curvatures) / (direction @ fisher @ direction)
    promised = rate * (1 - smoothness * rate / 2) * speed
    return Bound(promised, value(theta) - value(theta - rate * direction))


def categorical_block(logits: Vector) -> Identity:
    r"""The Fisher of a softmax is $\mathrm{Diag}(p) - p p^\top$ (`eq:prelim_cat_block`)."""
    p = jax.nn.softmax(logits)
    return Identity(law_fisher(jax.nn.log_softmax, logits), jnp.diag(p) - jnp.outer(p, p))


def categorical_null(logits: Vector) -> Identity:
    r"""$C(p) \mathbf 1 = 0$, and no other direction is lost: the rank is $m - 1$."""
    block = law_fisher(jax.nn.log_softmax, logits)
    values, vectors = jnp.linalg.eigh(block)
    null = vectors[:, 0] * jnp.sign(jnp.sum(vectors[:, 0]))
    constant = jnp.full(len(logits), len(logits) ** -0.5, logits.dtype)
    return Identity(
        jnp.append(null, (values[1] > 1e-14).astype(logits.dtype)), jnp.append(constant, 1.0)
    )


def square_root_isometry(p: Vector, xi: Vector, zeta: Vector) -> Identity:
    r"""$\langle D\Psi\, \xi, D\Psi\, \zeta \rangle = \sum_i \xi_i \zeta_i / p_i$ for
    $\Psi(p) = 2\sqrt p$ (`eq:appendix_sqrt_map`); `xi` and `zeta` are made tangent."""
    xi, zeta = xi - jnp.mean(xi), zeta - jnp.mean(zeta)

    def embed(p):
        return 2 * jnp.sqrt(p)

    pushed = [jax.jvp(embed, (p,), (t,))[1] for t in (xi, zeta)]
    scale = jnp.sum(jnp.abs(xi * zeta / p))
    return Identity(pushed[0] @ pushed[1], jnp.sum(xi * zeta / p), scale)


def exponential_family(statistics: Float[Array, "outcomes p"]) -> LogLaw:
    r"""$\log p_\theta(x) = \theta^\top T(x) - A(\theta)$ over a finite set."""
    return lambda theta: jax.nn.log_softmax(statistics @ theta)


def exponential_family_fisher(statistics: Float[Array, "outcomes p"], theta: Vector) -> Identity:
    r"""$F = \nabla^2 A = \mathrm{Cov}[T]$ (`eq:appendix_expfam_fisher`), all three of them."""
    p = jax.nn.softmax(statistics @ theta)
    centred = statistics - p @ statistics
    covariance = centred.T @ (p[:, None] * centred)
    hessian = jax.hessian(lambda t: jax.nn.logsumexp(statistics @ t))(theta)
    fisher = law_fisher(exponential_family(statistics), theta)
    return Identity(jnp.stack([fisher, hessian]), jnp.stack([covariance, covariance]))


def logistic_graph_fisher(features: Float[Array, "edges p"], theta: Vector) -> Identity:
    r"""Independent edges: $F = \sum_e s_e (1 - s_e)\, x_e x_e^\top$
    (`eq:appendix_logistic_graph_fisher`), against the sum over all graphs."""
    count = len(features)
    graphs = (jnp.arange(2**count)[:, None] >> jnp.arange(count)) & 1

    def log_law(t):
        logits = features @ t
        return jnp.sum(jax.nn.log_sigmoid(jnp.where(graphs == 1, logits, -logits)), axis=1)

    s = jax.nn.sigmoid(features @ theta)
    return Identity(law_fisher(log_law, theta), features.T @ ((s * (1 - s))[:, None] * features))
