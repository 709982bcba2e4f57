r"""Acyclic graphs of many Gaussian variables: local weights that are computed, not looked up.

The BGe score (`natgfn.dag.BGe`) of child $j$ with $p$ parents $S$ depends on two matrices $M$, of
the prior and of the data, each through
$$\tfrac{a_{p+1}}2 \log |M_{S \cup j}| - \tfrac{a_p}2 \log |M_{SS}|
  = \tfrac{a_{p+1}}2 \log M_{jj \mid S} + \tfrac12 \log |M_{SS}|,$$
where $a_{p+1} = a_p + 1$ and $M_{jj \mid S}$ is the Schur complement: the difference of two large
numbers becomes one of a size that float32 can hold. With $M_{ik}$ divided by $\sqrt{M_{ii}
M_{kk}}$, as in a correlation, the first term is $N$ times the logarithm of the share of $j$ that
$S$ leaves unexplained, and what was divided out is the same for every graph but for a number an
edge. One Cholesky factor of $M_{S \cup j}$, $j$ last, has both terms on its diagonal.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .dags import AbstractDags, Dag

_CELLS = 2**24  # numbers in the matrices that are factorised together


class GaussianDags(AbstractDags):
    r"""$\log R(G) = \sum_j w_j(\mathrm{Pa}_j)$ with
    $$w_j(S) = b_{|S|} + \sum_{i \in S} e_{ij} + \sum_k \sigma_k \big(a_{k,|S|} \log L_{jj}
      + \beta \sum_{i \in S} \log L_{ii}\big),$$
    $L$ the Cholesky factor of the $k$-th matrix on $S$ and $j$, in this order; $\sigma = (-, +)$.

    In float32 a share $v$ left unexplained by its parents makes an error of about $10^{-7} N / v$.

    Attributes:
        correlations: the matrix of the data, with ones on its diagonal, and that of the prior,
            unless it is diagonal, when its terms vanish.
        degrees: $a$, of each matrix, for each number of parents.
        by_size: $b$, for each number of parents.
        by_edge: $e$, with the prior of each edge; $-\infty$ where it is forbidden.
        power: $\beta$, that of the likelihood.
        max_parents: the most parents of a vertex.
    """

    correlations: Float[np.ndarray, "k d d"]
    degrees: Float[np.ndarray, "k d"]
    by_size: Float[np.ndarray, " d"]
    by_edge: Float[np.ndarray, "d d"]
    power: float
    required: tuple[tuple[int, int], ...] = eqx.field(static=True)
    max_parents: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return len(self.by_size)

    @property
    def max_steps(self) -> int:
        edges = sum(min(before, self.max_parents) for before in range(self.size))
        return edges - len(self.required) + 1

    def allowed(self, edges: Bool[Array, "d d"]) -> Bool[Array, "d d"]:
        room = jnp.sum(edges, axis=0) < self.max_parents
        return (jnp.asarray(self.by_edge) > -jnp.inf) & room

    def log_reward(self, state: Dag) -> Float[Array, ""]:
        return jnp.sum(self._weights(jnp, jnp.arange(self.size), state.edges.T))

    def local(self, child: int, parents: Bool[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        together = max(1, _CELLS // (self.size + 1) ** 2)
        found = np.full(len(parents), -np.inf)
        fits = np.sum(parents, axis=1) <= self.max_parents
        fits &= np.all(parents[:, self.always[:, child]], axis=1)
        fits &= ~np.any(parents & (self.by_edge[:, child] == -np.inf), axis=1)
        (rows,) = np.nonzero(fits & ~parents[:, child])
        for start in range(0, len(rows), together):
            some = rows[start : start + together]
            found[some] = self._weights(np, np.full(len(some), child), parents[some])
        return found

    def _weights(
        self,
        xp: Any,
        children: Int[Array | np.ndarray, " n"],
        parents: Bool[Array | np.ndarray, "n d"],
    ) -> Float[Array | np.ndarray, " n"]:
        """The sum above, by `numpy` or by `jax.numpy`."""
        count = xp.sum(parents, axis=1)
        total = xp.asarray(self.by_size)[count]
        total += xp.sum(xp.where(parents, xp.asarray(self.by_edge).T[children], 0), axis=1)
        both = parents[:, :, None] & parents[:, None, :]
        for matrix, degrees, sign in zip(self.correlations, self.degrees, (-1, 1), strict=False):
            inner = xp.where(both, xp.asarray(matrix), xp.eye(self.size, dtype=total.dtype))
            side = xp.where(parents, xp.asarray(matrix)[children], 0)
            last = xp.concatenate([side, xp.ones_like(side[:, :1])], axis=1)
            whole = xp.concatenate([inner, side[:, None]], axis=1)
            whole = xp.concatenate([whole, last[:, :, None]], axis=2)
            factor = xp.linalg.cholesky(whole)
            logs = xp.log(xp.diagonal(factor, axis1=1, axis2=2))
            inside = xp.sum(logs[:, :-1], axis=1)
            total += sign * (xp.asarray(degrees)[count] * logs[:, -1] + self.power * inside)
        return total
