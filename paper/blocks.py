r"""The structure that the paper names for graphs, as surrogates of the Fisher of a policy.

With $J(G)$ the Jacobian of the logits and $C(\pi) = \mathrm{Diag}(\pi) - \pi \pi^\top$
(`eq:shared_exact_fisher_main`),
$$F = \sum_G w(G)\, J(G)^\top C(\pi_G)\, J(G).$$
The paper names blocks (`sec:fisher_rao_structure`, `app:conditional_fisher_factorization`,
`app:sachs_dag_details`) and defines none for a policy that adds edges in any order. Here a
surrogate is a partition, of the parameters or of the actions, and keeps what is within its groups:
$$B = F \circ 1[\text{same group}] \qquad \text{or} \qquad
  B = \sum_G w(G)\, J(G)^\top \bigl(C(\pi_G) \circ 1[\text{same group}]\bigr)\, J(G),$$
both positive semidefinite, as block diagonals of such matrices are.

- *layerwise*: the parameters of a layer, weights and biases;
- *output head*: those of the last layer, and all others;
- *child-node heads*: in the last layer, those of the edges $i \to j$ into a child $j$, and those of
  STOP; all other layers together. The block that a child would have if no layer were shared;
- *child-node outputs*: the actions $i \to j$ of a child $j$, and STOP. With
  $m_j = \sum_i \pi_{ij}$ and $\pi_{\cdot | j} = \pi_{\cdot j} / m_j$, the block of a child is
  $$\mathrm{Diag}(\pi_{\cdot j}) - \pi_{\cdot j} \pi_{\cdot j}^\top = m_j\, C(\pi_{\cdot | j})
    + m_j (1 - m_j)\, \pi_{\cdot | j} \pi_{\cdot | j}^\top:$$
  the choice of a parent exactly, and that of each child as a coin of its own;
- *factorised Bernoulli*: each action by itself, $\mathrm{Diag}(\pi_a (1 - \pi_a))$, as if edges
  were independent coins. It is the diagonal of $C$, so the edge-diagonal Fisher is the same.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from natgfn.envs import AbstractEnv, Dags
from natgfn.fisher import Occupancy
from natgfn.policies import MLP, masked_softmax

Matrix = Float[Array, "p p"]

WHOLE = "none: the whole Fisher"


def surrogates(env: Dags, policy: MLP, occupancy: Occupancy) -> dict[str, Matrix]:
    """The Fisher of some visits, first, and every surrogate of it, by name.

    Parameters are in order: layer by layer, but in the last one action by action, the weights of
    an action before its bias.
    """
    _, target = env.pairs
    child = np.append(target, env.size)
    together, alone = np.zeros_like(child), np.arange(child.size)
    partitions = jnp.asarray(np.stack([together, child, alone]))
    whole, by_child, by_action = grouped_fishers(env, policy, occupancy, partitions)
    layers = [eqx.filter(layer, eqx.is_inexact_array) for layer in (policy.first, *policy.rest)]
    sizes = [ravel_pytree(layer)[0].size for layer in layers]
    layer = np.repeat(np.arange(len(sizes)), sizes)
    head = (layer == layer[-1]).astype(int)
    heads = np.append(np.full(sum(sizes[:-1]), -1), np.repeat(child, sizes[-1] // child.size))

    def within(groups: Int[np.ndarray, " p"]) -> Matrix:
        return jnp.where(groups[:, None] == groups, whole, 0.0)

    return {
        WHOLE: whole,
        "layerwise": within(layer),
        "output head": within(head),
        "child-node heads": within(heads),
        "child-node outputs": by_child,
        "factorised Bernoulli": by_action,
    }


@eqx.filter_jit
def grouped_fishers(
    env: AbstractEnv, policy: MLP, occupancy: Occupancy, groups: Int[Array, "kinds actions"]
) -> Float[Array, "kinds p p"]:
    r"""$\sum w J^\top (C \circ 1[\text{same group}]) J$ for several partitions of the actions.

    Logits are $W h + b$ of the last hidden layer $h$, so that $J = [W H,\ I \otimes (h, 1)]$ with
    $H$ the Jacobian of $h$: products have as many rows as $h$ has numbers, not one an action.
    """
    states, head = occupancy.states, policy.rest[-1]
    params, static = eqx.partition(MLP(policy.first, policy.rest[:-1]), eqx.is_inexact_array)
    flat, unravel = ravel_pytree(params)

    def hidden(x, state):
        return jax.nn.leaky_relu(eqx.combine(unravel(x), static)(state))

    h = jax.vmap(hidden, (None, 0))(flat, states)
    slopes = jax.vmap(jax.jacrev(hidden), (None, 0))(flat, states)
    inputs = jnp.pad(h, ((0, 0), (0, 1)), constant_values=1.0)
    pi = masked_softmax(jax.vmap(head)(h), jax.vmap(env.forward_mask)(states))
    diagonal = pi[:, None] * jnp.eye(env.num_actions, dtype=pi.dtype)
    whole = occupancy.weights[:, None, None] * (diagonal - pi[:, :, None] * pi[:, None])

    def one(groups):
        c = jnp.where(groups[:, None] == groups, whole, 0.0)
        right = c @ head.weight
        middle = head.weight.T @ right
        trunk = jnp.einsum("nkp,nkl,nlq->pq", slopes, middle, slopes)
        cross = jnp.einsum("nkp,nak,ni->pai", slopes, right, inputs).reshape(flat.size, -1)
        last = jnp.einsum("nab,ni,nj->aibj", c, inputs, inputs).reshape(2 * cross.shape[1:])
        return jnp.block([[trunk, cross], [cross.T, last]])

    with jax.default_matmul_precision("highest"):
        return jax.lax.map(one, groups)
