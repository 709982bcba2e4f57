"""Brute force, in plain NumPy: what the library computes cleverly, by its definition.

Everything is a sum over *all* trajectories, which are found by walking through the
environment's own functions; the library's tables only lend the numbers of the states.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import natgfn as ng
from natgfn.envs import AbstractEnv, State
from natgfn.objectives import AbstractObjective, Batch, TrajectoryBalance, evaluate
from natgfn.policies import AbstractPolicy, Flow, Tabular, UniformPolicy
from natgfn.sampling import OnPolicy, Trajectories, Weighting
from natgfn.statespace import StateSpace, enumerate_states


def float64(test: Callable) -> Callable:
    """Run a test in double precision: for claims about mathematics."""

    @functools.wraps(test)
    def wrapped(*args, **kwargs):
        with jax.enable_x64(True):
            return test(*args, **kwargs)

    return wrapped


class Plainly(AbstractPolicy):
    """A policy evaluated state by state, padding and all."""

    policy: AbstractPolicy

    def __call__(self, state: State) -> jax.Array:
        return self.policy(state)

    @property
    def by_visits(self) -> bool:
        return False


# Environments that the library does not have.


class Dag(AbstractEnv):
    """Any small graph, given as a table: row by inner node, entry by action, -1 for none.

    Nodes beyond the table are terminal, and have the rewards.
    """

    table: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    rewards: tuple[float, ...] = eqx.field(static=True)
    max_steps: int = eqx.field(static=True, default=0)

    @property
    def num_actions(self) -> int:
        return len(self.table[0])

    @property
    def _children(self) -> np.ndarray:
        return np.array([*self.table, *[(-1,) * self.num_actions] * len(self.rewards)], np.int32)

    @property
    def _parents(self) -> np.ndarray:
        parents = np.full_like(self._children, -1)
        for node, action in np.argwhere(self._children >= 0):
            parents[self._children[node, action], action] = node
        return parents

    def init(self):
        return jnp.array(0, jnp.int32)

    def step(self, state, action):
        return jnp.asarray(self._children)[state, action]

    def undo(self, state, action):
        return jnp.asarray(self._parents)[state, action]

    def forward_mask(self, state):
        return jnp.asarray(self._children)[state] >= 0

    def backward_mask(self, state):
        return jnp.asarray(self._parents)[state] >= 0

    def is_terminal(self, state):
        return state >= len(self.table)

    def observe(self, state):
        return jnp.stack([state, (7 * state) % 5, (3 * state) % 4]) / 5.0

    def log_reward(self, state):
        with np.errstate(divide="ignore"):
            return jnp.asarray(np.log(self.rewards))[state - len(self.table)]


# Not graded: node 1 is reached in 1, 2 and 3 steps, object 6 in 1, 3 and 4 among others. The
# numbers are no topological order (1 comes last), and 5 has a single way out.
_SHORTCUTS = (
    (4, 2, 6, 1),  # 0, the source
    (8, 6, -1, 7),  # 1
    (-1, 3, 7, 5),  # 2
    (6, 7, 1, -1),  # 3
    (3, 1, -1, -1),  # 4
    (7, -1, -1, -1),  # 5
)
SHORTCUTS = Dag(_SHORTCUTS, (2.0, 0.5, 1.5), 4)
ZERO_REWARD = Dag(_SHORTCUTS, (2.0, 0.5, 0.0), 4)


def random_dag(seed: int, inner: int = 7, terminals: int = 4, actions: int = 4) -> Dag:
    """A graph with edges drawn at random; every inner node can be reached and can end."""
    rng = np.random.default_rng(seed)
    table = np.full((inner, actions), -1)
    entered: set[tuple[int, int]] = set()

    def connect(a: int, b: int) -> bool:
        for action in rng.permutation(actions):
            if table[a, action] < 0 and (b, int(action)) not in entered:
                table[a, action] = b
                entered.add((b, int(action)))
                return True
        return False

    for b in range(1, inner):
        connect(int(rng.integers(max(0, b - 2), b)), b)
    for a in range(inner):
        any(connect(a, int(inner + b)) for b in rng.permutation(terminals))
        connect(a, int(rng.integers(a + 1, inner + terminals)))
    used = sorted({int(b) for b in table.ravel() if b >= inner})
    rename = {-1: -1} | {b: b for b in range(inner)} | {b: inner + i for i, b in enumerate(used)}
    rewards = rng.gamma(1.0, size=len(used))
    rows = tuple(tuple(rename[int(b)] for b in row) for row in table)
    return Dag(rows, tuple(rewards.tolist()), inner)


# All trajectories.


class Path(NamedTuple):
    states: tuple[int, ...]
    actions: tuple[int, ...]


def key(state) -> tuple[int, ...]:
    return tuple(
        int(value) for leaf in jax.tree.leaves(state) for value in np.asarray(leaf).ravel()
    )


def walk(env: AbstractEnv) -> list[tuple[tuple, tuple]]:
    """Every trajectory of `env`, as keys of states and actions, by depth-first search."""

    @jax.jit
    def look(state):
        children = jax.vmap(env.step, (None, 0))(state, jnp.arange(env.num_actions))
        return env.is_terminal(state), env.forward_mask(state), children

    seen = {}

    def neighbours(state):
        if key(state) not in seen:
            terminal, mask, children = jax.tree.map(np.asarray, look(state))
            valid = [] if terminal else np.flatnonzero(mask).tolist()
            seen[key(state)] = [
                (a, jax.tree.map(lambda x, a=a: jnp.asarray(x[a]), children)) for a in valid
            ]
        return seen[key(state)]

    found = []

    def extend(state, states, actions):
        if not neighbours(state):
            found.append((states, actions))
        for action, child in neighbours(state):
            extend(child, (*states, key(child)), (*actions, action))

    extend(env.init(), (key(env.init()),), ())
    return found


@dataclass(frozen=True)
class World:
    """An environment, its numbering, and all its trajectories in these numbers."""

    env: AbstractEnv
    space: StateSpace
    paths: list[Path]
    log_rewards: np.ndarray
    """Of each trajectory's object."""

    @functools.cached_property
    def forward_valid(self) -> np.ndarray:
        valid = np.zeros((self.space.num_inner, self.space.num_actions), bool)
        for path in self.paths:
            valid[list(path.states[:-1]), list(path.actions)] = True
        return valid

    @functools.cached_property
    def backward_valid(self) -> np.ndarray:
        valid = np.zeros((self.space.num_states, self.space.num_actions), bool)
        for path in self.paths:
            valid[list(path.states[1:]), list(path.actions)] = True
        return valid

    @functools.cached_property
    def visits(self) -> np.ndarray:
        """How often each trajectory visits each inner state, `[paths, inner]`."""
        counts = np.zeros((len(self.paths), self.space.num_inner))
        for i, path in enumerate(self.paths):
            np.add.at(counts[i], list(path.states[:-1]), 1)
        return counts

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """Which object each trajectory makes, `[paths, terminals]`."""
        last = np.array([path.states[-1] for path in self.paths]) - self.space.num_inner
        return np.eye(self.space.num_terminal)[last]

    def sum_taken(self, forward: np.ndarray) -> np.ndarray:
        """The sum of a table of edges, by the state they leave, along each trajectory."""
        return np.array([forward[list(p.states[:-1]), list(p.actions)].sum() for p in self.paths])

    def sum_arrived(self, backward: np.ndarray) -> np.ndarray:
        """The sum of a table of edges, by the state they enter, along each trajectory."""
        return np.array([backward[list(p.states[1:]), list(p.actions)].sum() for p in self.paths])


@functools.cache
def explore(env: AbstractEnv) -> World:
    space = enumerate_states(env)
    number = {}
    for i in range(space.num_states):
        number[key(jax.tree.map(lambda x, i=i: x[i], space.states))] = i
    walked = walk(env)
    paths = [Path(tuple(number[s] for s in states), actions) for states, actions in walked]
    with jax.enable_x64(True):
        reward = np.asarray(jax.jit(jax.vmap(env.log_reward))(space.terminals), float)
    ends = np.array([path.states[-1] for path in paths])
    return World(env, space, paths, reward[ends - space.num_inner])


WORLDS = {
    "grid": ng.envs.Hypergrid(side=3, floor=0.1),
    "tree": ng.envs.Triangles(nodes=3, beta=0.7),
    "shortcuts": SHORTCUTS,
}


# Random tables.


def log_softmax(logits: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Row by row over the valid entries; rows without any are all minus infinity."""
    out = np.full(logits.shape, -np.inf)
    for row, (x, ok) in enumerate(zip(logits, valid, strict=True)):
        if ok.any():
            out[row, ok] = x[ok] - np.log(np.exp(x[ok]).sum())
    return out


class Tables(NamedTuple):
    """Random policies for a world: logits, and their normalised logarithms."""

    forward: np.ndarray
    backward: np.ndarray
    log_pf: np.ndarray
    log_pb: np.ndarray
    log_z: float

    @property
    def pf(self) -> np.ndarray:
        return np.exp(self.log_pf)


def random_tables(world: World, seed: int = 0, scale: float = 1.0) -> Tables:
    rng = np.random.default_rng(seed)
    forward = scale * rng.normal(size=world.forward_valid.shape)
    backward = scale * rng.normal(size=world.backward_valid.shape)
    return Tables(
        forward,
        backward,
        log_softmax(forward, world.forward_valid),
        log_softmax(backward, world.backward_valid),
        float(rng.normal()),
    )


def uniform_backward(world: World) -> np.ndarray:
    return log_softmax(np.zeros(world.backward_valid.shape), world.backward_valid)


# Sums over all trajectories.


def path_probs(world: World, pf: np.ndarray) -> np.ndarray:
    """`eq:traj_law_main`."""
    return np.array([np.prod(pf[list(p.states[:-1]), list(p.actions)]) for p in world.paths])


def occupancy(world: World, pf: np.ndarray) -> np.ndarray:
    """`eq:occupancy_main`."""
    return path_probs(world, pf) @ world.visits


def timed_occupancy(world: World, pf: np.ndarray) -> np.ndarray:
    longest = max(len(p.actions) for p in world.paths)
    table = np.zeros((longest, world.space.num_inner))
    for probability, path in zip(path_probs(world, pf), world.paths, strict=True):
        for t, state in enumerate(path.states[:-1]):
            table[t, state] += probability
    return table


def terminal_law(world: World, pf: np.ndarray) -> np.ndarray:
    return path_probs(world, pf) @ world.ends


def path_counts(world: World) -> np.ndarray:
    """How many paths lead from the source to each state."""
    prefixes = {(path.states[: t + 1], path.actions[:t]) for path in world.paths
                for t in range(len(path.states))}  # fmt: skip
    counts = np.zeros(world.space.num_states)
    for states, _ in prefixes:
        counts[states[-1]] += 1
    return counts


def step_scores(world: World, pf: np.ndarray) -> list[np.ndarray]:
    """$u_t = e_a - \\pi$ in the block of the state, flattened; `[times, inner * actions]` each."""
    found = []
    for path in world.paths:
        u = np.zeros((len(path.actions), *pf.shape))
        for t, (state, action) in enumerate(zip(path.states, path.actions, strict=False)):
            u[t, state] = -pf[state]
            u[t, state, action] += 1
        found.append(u.reshape(len(path.actions), -1))
    return found


def scores(world: World, pf: np.ndarray) -> np.ndarray:
    """$z(\\tau) = \\sum_t u_t$."""
    return np.stack([u.sum(0) for u in step_scores(world, pf)])


def trajectory_fisher(world: World, pf: np.ndarray) -> np.ndarray:
    """`eq:exact_fisher_main`, with all cross-time terms."""
    z = scores(world, pf)
    return (path_probs(world, pf)[:, None] * z).T @ z


def step_fisher(world: World, pf: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """`eq:exact_temporal_fisher_main`, or `eq:sampled_fisher_training` with other weights."""
    weights = path_probs(world, pf) if weights is None else weights
    return sum(w * u.T @ u for w, u in zip(weights, step_scores(world, pf), strict=True))


def residuals(world: World, tables: Tables) -> np.ndarray:
    """`eq:tb_residual_training`."""
    forward = world.sum_taken(tables.log_pf)
    return tables.log_z + forward - world.log_rewards - world.sum_arrived(tables.log_pb)


def exact_gradient(world: World, tables: Tables) -> np.ndarray:
    """$h = E[2 \\delta z]$, on-policy, flattened."""
    return 2 * (path_probs(world, tables.pf) * residuals(world, tables)) @ scores(world, tables.pf)


# Across to the library.


def make_flow(tables: Tables, *, learned: bool = True) -> Flow:
    backward = (
        Tabular(jnp.asarray(tables.backward))
        if learned
        else UniformPolicy(tables.backward.shape[1])
    )
    # A NumPy scalar, not a Python one: a weak type would be another program to compile.
    log_z = jnp.asarray(np.float64(tables.log_z))
    return Flow(Tabular(jnp.asarray(tables.forward)), backward, log_z)


def as_trajectories(world: World, picked: np.ndarray | None = None) -> Trajectories:
    """Trajectories by their places in `world.paths`, each once unless told otherwise."""
    picked = np.arange(len(world.paths)) if picked is None else picked
    times = world.space.max_steps
    states = np.zeros((times + 1, len(picked)), np.int32)
    actions = np.zeros((times, len(picked)), np.int32)
    live = np.zeros((times, len(picked)), bool)
    for i, path in enumerate(world.paths[j] for j in picked):
        length = len(path.actions)
        states[: length + 1, i] = path.states
        states[length:, i] = path.states[-1]
        actions[:length, i] = path.actions
        live[:length, i] = True
    return Trajectories(jnp.asarray(states), jnp.asarray(actions), jnp.asarray(live))


@eqx.filter_jit
def _on_batch(space, flow, paths, objective, proposal, reference, scale, then):
    batch = evaluate(
        objective,
        space,
        flow,
        paths,
        proposal=proposal,
        reference=reference,
        weighting=Weighting(),
    )
    if scale is not None:
        batch = eqx.tree_at(
            lambda b: (b.omega, b.weights), batch, (batch.omega * scale, batch.weights * scale)
        )
    return then(space, flow, batch)


def on_batch(
    world: World,
    flow: Flow,
    then: Callable[[StateSpace, Flow, Batch], Any],
    picked: np.ndarray | None = None,
    *,
    penalty=None,
    objective: AbstractObjective | None = None,
    proposal=OnPolicy(),
    reference=None,
    frequency: np.ndarray | None = None,
) -> Any:
    """`then` of a batch of given trajectories, compiled once for each `then` and shape.

    With `frequency`, trajectories are weighted as if drawn that often: means over the batch
    become exact expectations.
    """
    if objective is None:
        objective = TrajectoryBalance() if penalty is None else TrajectoryBalance(penalty)
    scale = None if frequency is None else jnp.asarray(frequency * len(frequency))
    paths = as_trajectories(world, picked)
    return _on_batch(world.space, flow, paths, objective, proposal, reference, scale, then)


class Facts(NamedTuple):
    """The arrays of a batch."""

    residuals: jax.Array
    shares: jax.Array
    weights: jax.Array
    omega: jax.Array
    loss: jax.Array
    gradient: Flow
    least_squares_weights: jax.Array


def facts(space: StateSpace, flow: Flow, batch: Batch) -> Facts:
    return Facts(
        batch.residuals,
        batch.shares,
        batch.weights,
        batch.omega,
        batch.loss,
        batch.gradient(),
        batch.least_squares_weights(),
    )


# The residuals' Jacobian.


def jacobian(world: World, tables: Tables, *, learned: bool = True) -> np.ndarray:
    """$\\nabla \\delta_i$ as rows: forward table, backward table if it is learned, $\\log Z$."""
    parts = [scores(world, tables.pf)]
    if learned:
        pb = np.exp(tables.log_pb)
        backward = np.zeros((len(world.paths), *pb.shape))
        for i, path in enumerate(world.paths):
            for state, action in zip(path.states[1:], path.actions, strict=True):
                backward[i, state] += pb[state]
                backward[i, state, action] -= 1
        parts.append(backward.reshape(len(world.paths), -1))
    return np.concatenate([*parts, np.ones((len(world.paths), 1))], axis=1)


def flatten(flow: Flow) -> np.ndarray:
    """The trained arrays of a flow, in the order of `jacobian`."""
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(eqx.filter(flow, eqx.is_array))])


# Transformers.


def densely(module: Any, x: np.ndarray) -> np.ndarray:
    """A matrix product and a bias, in float64."""
    return x @ np.asarray(module.weight, np.float64) + np.asarray(module.bias, np.float64)


def attended(policy: Any, tokens: list[np.ndarray]) -> list[np.ndarray]:
    """The tokens after all layers of linear attention and the last normalisation: token by token,
    head by head."""

    def norm(module, x):
        scale, bias = (np.asarray(y, np.float64) for y in (module.scale, module.bias))
        centred = x - x.mean()
        return centred / np.sqrt((centred**2).mean() + 1e-5) * scale + bias

    def phi(x):
        return np.where(x > 0, x + 1, np.exp(x))

    for layer in policy.layers:
        projected = [np.split(densely(layer.project, norm(layer.before, x)), 3) for x in tokens]
        after = []
        for x, (q, _, _) in zip(tokens, projected, strict=True):
            heads = []
            for part in np.split(np.arange(len(x)), policy.heads):
                weights = np.array([phi(q[part]) @ phi(k[part]) for _, k, _ in projected])
                values = np.array([v[part] for _, _, v in projected])
                heads.append(weights @ values / weights.sum())
            y = x + densely(layer.out, np.concatenate(heads))
            hidden = np.maximum(densely(layer.up, norm(layer.middle, y)), 0)
            after.append(y + densely(layer.down, hidden))
        tokens = after
    return [norm(policy.last, x) for x in tokens]
