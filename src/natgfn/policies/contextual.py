r"""Policies that see a context of a partial assignment, and nothing else of it.

An aligned policy sees the separator $S_t$, and can be the target. One that sees fewer variables, of
those the nearest, has fewer contexts; what it cannot represent, it cannot learn.
"""

import math
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..envs import AbstractEnv, Assignment, Assignments
from ..errors import require_whole
from ..graphical import Contexts, separators, table_size, width
from ..statespace import StateSpace
from .base import DEEPEST, AbstractDesign, AbstractPolicy, masked_softmax
from .network import Network
from .tabular import Table, Tabular


@runtime_checkable
class SeesContexts(Protocol):
    """A policy that can be asked for its logits by the numbers of contexts."""

    contexts: Contexts | None

    def in_contexts(self, rows: Int[Array, " n"]) -> Float[Array, "n actions"]:
        """The logits in contexts."""
        ...


class ContextNetwork(AbstractPolicy):
    """A multilayer perceptron with leaky ReLUs, shared by all variables.

    Its first layer adds up embeddings: of the variable to assign, and of every variable that is
    seen with its value.

    Attributes:
        own: an embedding for each step.
        tokens: an embedding for each value of each variable.
        rest: the layers that follow.
        contexts: what is seen.
    """

    own: Float[Array, "steps width"]
    tokens: Float[Array, "tokens width"]
    rest: tuple[eqx.nn.Linear, ...]
    contexts: Contexts = eqx.field(static=True)

    def __call__(self, state: Assignment) -> Float[Array, " actions"]:
        return self._logits(self.contexts.row(state.values, state.step))

    def in_contexts(self, rows: Int[Array, " n"]) -> Float[Array, "n actions"]:
        """In blocks, of which only the logits are kept."""
        blocks = math.ceil(len(rows) / _BLOCK)
        if blocks <= 1:
            return jax.vmap(self._logits)(rows)
        padded = jnp.pad(rows, (0, blocks * _BLOCK - len(rows)))
        block = jax.checkpoint(jax.vmap(self._logits))
        found = jax.lax.map(block, padded.reshape(blocks, _BLOCK))
        return found.reshape(-1, found.shape[-1])[: len(rows)]

    def _logits(self, row: Int[Array, ""]) -> Float[Array, " actions"]:
        contexts = self.contexts
        starts = jnp.asarray(contexts.starts, jnp.int32)
        row = jnp.minimum(row, contexts.num_rows - 1)  # terminal states, whose logits are masked
        step = jnp.searchsorted(starts, row, side="right") - 1
        seen, strides, cards = jnp.asarray(contexts.table)[:, step]
        values = (row - starts[step]) // jnp.maximum(strides, 1) % cards
        first = jnp.asarray(np.cumsum([0, *contexts.cards])[:-1])
        x = self.own[step]
        for token, stride in zip(first[seen] + values, strides, strict=True):
            x = x + jnp.where(stride > 0, self.tokens[token], 0.0)
        for layer in self.rest:
            x = layer(jax.nn.leaky_relu(x))
        return x


_BLOCK = 2**13  # contexts whose activations are kept together


class ContextTable(AbstractDesign):
    """A row of logits for each context, uniform at first.

    Attributes:
        size: the most variables that a context sees, the nearest ones; the whole separator by
            default.
    """

    size: int | None = None

    def __call__(
        self, env: AbstractEnv, *, key: PRNGKeyArray | None = None, outputs: int | None = None
    ) -> Tabular:
        env = require_assignments(env, "policies.ContextTable")
        contexts = env.contexts(self.size)
        return Tabular(jnp.zeros((contexts.num_rows, outputs or env.num_actions)), contexts)


class ContextMLP(AbstractDesign):
    r"""A network on contexts; weights start uniform in $\pm 1 / \sqrt{\text{inputs}}$.

    Attributes:
        width: of each hidden layer.
        depth: how many hidden layers.
        size: the most variables that a context sees, the nearest ones; the whole separator by
            default.
    """

    width: int = 32
    depth: int = 2
    size: int | None = None

    def __check_init__(self):
        require_whole("width", self.width, 1)
        require_whole("depth", self.depth, 1, DEEPEST)

    def __call__(
        self, env: AbstractEnv, *, key: PRNGKeyArray, outputs: int | None = None
    ) -> ContextNetwork:
        env = require_assignments(env, "policies.ContextMLP")
        contexts = env.contexts(self.size)
        own_key, token_key, *keys = jax.random.split(key, self.depth + 2)
        bound = 1 / math.sqrt(contexts.table.shape[2] + 1)

        def embedding(key, count):
            return jax.random.uniform(key, (count, self.width), minval=-bound, maxval=bound)

        sizes = [self.width] * (self.depth - 1) + [outputs or env.num_actions]
        rest = [eqx.nn.Linear(self.width, n, key=k) for n, k in zip(sizes, keys, strict=True)]
        own = embedding(own_key, contexts.num_steps)
        return ContextNetwork(own, embedding(token_key, sum(contexts.cards)), tuple(rest), contexts)


EQUATIONS = 7
"""Trajectories that a run draws for each free logit of a table, at least; see `usual_size`."""


def usual_design(env: AbstractEnv, trajectories: int = 128_000) -> AbstractDesign:
    """A table where every state is listed, or contexts are; a network elsewhere.

    Args:
        env: where the policy acts.
        trajectories: of the whole run, updates times batch.
    """
    if isinstance(env, Assignments):
        return ContextTable(None if env.tree is not None else usual_size(env, trajectories))
    return Table() if isinstance(env, StateSpace) else Network()


def usual_size(env: Assignments, trajectories: int) -> int:
    r"""How many variables a table of contexts sees by default, where separators are too large.

    A table that sees more represents more, and learns later. A step in sample space solves one
    equation for each trajectory, so what is left to learn falls by $e^{-1}$ when as many
    trajectories have been drawn as the table has free logits. The most variables are seen for which
    a run falls seven times. Of ten values from 3 to 16 that was the best in the geometric mean, on
    Ising models with one seed each: grids of 16 x 16 with couplings of 0.3 and 0.6 and a torus of
    9 x 9, tables that see 3 to 7 variables, up to 1,000 updates of 128. The divergence was 1.3
    times that of the best of these tables in the mean over targets and updates, and 5 times at
    worst; 6 did as well (1.3 and 3 times), 4 and 12 worse (1.9 and 12, 1.7 and 15 times). That
    free logits count, not visits to a context, was seen on a grid of 20 x 20 and a torus of 10 x 10
    that the experiment `structured` reports on too.

    Args:
        env: whose separators are too large.
        trajectories: of the whole run, updates times batch.
    """
    widest = width(separators(env.graph, env.order))
    return next(k for k in range(widest + 1) if k == widest or not _fits(env, k + 1, trajectories))


def _fits(env: Assignments, size: int, trajectories: int) -> bool:
    contexts = env.contexts(size)
    entries = table_size(env.graph, contexts.seen, env.order)
    free = entries - contexts.num_rows
    return entries <= env.max_entries and EQUATIONS * free <= trajectories


def require_assignments(env: AbstractEnv, what: str) -> Assignments:
    """The environment, if its states are partial assignments that are not numbered."""
    if isinstance(env, Assignments):
        return env
    raise ValueError(
        f"{what} needs envs.Assignments, not enumerated, and got {type(env).__name__}: "
        "set enumerate=False, or use another policy or occupancy"
    )


def context_probs(env: Assignments, policy: AbstractPolicy) -> Float[Array, "rows actions"]:
    r"""$\pi(a \mid c)$ in every context that a policy sees, over what is possible in some state."""
    contexts = contexts_of(policy)
    return masked_softmax(_logits(policy, contexts), env.mask(contexts))


def clique_probs(env: Assignments, policy: AbstractPolicy) -> Float[Array, "rows actions"]:
    r"""$\pi(a \mid x_{S_t})$ in every context of the junction tree, of what the policy sees.

    Separators tell what is possible, where the policy may see too little for that.
    """
    tree, _ = env.require_tree("a law over the cliques")
    contexts = contexts_of(policy)
    logits = _logits(policy, contexts)
    if contexts != tree.contexts:
        logits = logits[contexts.within(tree.contexts)]
    return masked_softmax(logits, jnp.asarray(env.possible))


def _logits(policy: AbstractPolicy, contexts: Contexts) -> Float[Array, "rows actions"]:
    assert isinstance(policy, SeesContexts)
    return policy.in_contexts(jnp.arange(contexts.num_rows))


def contexts_of(policy: AbstractPolicy | SeesContexts) -> Contexts:
    """What a policy sees of a partial assignment."""
    if isinstance(policy, SeesContexts) and policy.contexts is not None:
        return policy.contexts
    raise ValueError(
        f"a {type(policy).__name__} policy does not see contexts: use policies.ContextTable or "
        "policies.ContextMLP"
    )
