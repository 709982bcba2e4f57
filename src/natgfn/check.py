r"""Check that an environment keeps the promises of `natgfn.envs.AbstractEnv`.

Every state is enumerated and every edge tried in both directions. The last check is the one
that no look at a single state can replace: trajectory balance has the target as its optimum
only if $\sum_{\tau : s_0 \to x} P_B(\tau \mid x) = 1$, and a backward mask that lists a parent
which cannot be reached loses the probability that goes there.

Where there are too many states to list, random trajectories take their place: the states on
them, random edges out of these, and random trajectories back from their objects, which must all
arrive at the source.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, PRNGKeyArray

from .envs import AbstractEnv, ListsObjects, State
from .errors import require_whole
from .memory import require_memory
from .policies import UniformPolicy
from .sampling import OnPolicy, Trajectories, rollback, rollout
from .statespace import (
    Numbers,
    StateSpace,
    TooManyStates,
    backward_mass,
    enumerate_states,
    pack,
    unpack,
)

_BATCH = 2**12
_TRAJECTORIES = 1000
_EDGES = 2**17
_LARGEST = 2.0**20  # of a log_reward
_REPEATED = 2**12  # edges
_BYTES = 2**26  # of the sampled states, and of those that their edges lead to


class Finding(NamedTuple):
    """What one check found.

    Attributes:
        ok: whether it passed; None if it could not be made.
        message: what holds, or what does not and where.
    """

    ok: bool | None
    message: str

    def __str__(self) -> str:
        return f"{ {True: 'ok', False: 'FAILED', None: '--'}[self.ok]:<7}{self.message}"


def check_environment(env: AbstractEnv, *, max_states: int = 2**18) -> list[Finding]:
    """Check everything that training relies on, over every state of `env` or a sample of them.

    A check that others build on ends the list when it fails: the interface, the source, and
    the enumeration of the graph. All others are independent.

    Args:
        env: any environment.
        max_states: the most states to list; if there are more, random trajectories are checked.

    Returns:
        One finding a check, in the order in which they were made.
    """
    findings = []
    for check in (_interface, _source):
        findings.append(check(env))
        if not findings[-1].ok:
            return findings
    try:
        space = enumerate_states(env, max_states=max_states)
    except TooManyStates:
        space = None
    except ValueError as error:
        return [*findings, Finding(False, str(error))]
    try:
        found = _check_sample(env, max_states) if space is None else _check_all(space)
    except ValueError as error:  # no room
        found = [Finding(False, str(error))]
    return findings + found


def _check_all(space: StateSpace) -> list[Finding]:
    case = _Case.of(space)
    findings = [
        Finding(True, f"the graph is acyclic, with {space.num_states:,} states"),
        _rewards(case),
        _observations(case),
        _length(space),
        _terminals(case),
        _objects(space),
        _undo(case),
        _repeats(case),
    ]
    masks = [_forward_edges(case), _backward_edges(case)]
    if not all(finding.ok for finding in masks):
        unknown = Finding(None, "not checked: that P_B sums to one; mend the masks first")
        return [*findings, *masks, unknown]
    return [*findings, *masks, _backward_mass(space, case.backward_mask)]


def _check_sample(env: AbstractEnv, max_states: int) -> list[Finding]:
    there, back = jax.random.split(jax.random.key(0))
    paths = _draw(env, there)
    case = _Case.along(env, paths)
    extent = Finding(
        None,
        f"too many states to list (more than {max_states:,}): checked on "
        f"{paths.actions.shape[1]:,} random trajectories, {case.num_states:,} states and "
        f"{len(case.action):,} edges; not checked: that the graph is acyclic, and that "
        "every object can be reached",
    )
    if not (goes_on := _goes_on(case)).ok:
        return [extent, goes_on]
    findings = [extent, goes_on, _terminals(case), _rewards(case), _observations(case)]
    edges = [_repeats(case), _ends(env, paths), _forward_edges(case), _undo(case)]
    if edges[-1].ok:  # it is by undo that claims are checked
        edges.append(_backward_edges(case))
    if not all(finding.ok for finding in edges):
        unknown = Finding(None, "not checked: that P_B sums to one; mend what failed first")
        return [*findings, *edges, unknown]
    return [*findings, *edges, _way_back(env, paths.last, back)]


def _interface(env: AbstractEnv) -> Finding:
    """Shapes and types, without computing anything."""
    try:
        for name in ("num_actions", "max_steps"):
            require_whole(name, getattr(env, name), 1)
    except ValueError as error:
        return Finding(False, str(error))
    shape = jax.ShapeDtypeStruct
    action, mask = shape((), jnp.int32), shape((env.num_actions,), bool)
    name = "init"
    try:
        state = jax.eval_shape(env.init)
        if not all(_is_integer(leaf.dtype) for leaf in jax.tree.leaves(state)):
            return Finding(False, f"init gives {_shapes(state)}: a state must be made of integers")
        expected = {"step": state, "undo": state, "forward_mask": mask, "backward_mask": mask}
        for name, result in (expected | {"is_terminal": shape((), bool)}).items():
            arguments = (state, action) if result is state else (state,)
            got = jax.eval_shape(getattr(env, name), *arguments)
            if not _same_structure(got, result):
                return Finding(False, f"{name} gives {_shapes(got)}, expected {_shapes(result)}")
        for name, rank in {"log_reward": 0, "observe": 1}.items():
            got = jax.eval_shape(getattr(env, name), state)
            if len(got.shape) != rank or not jnp.issubdtype(got.dtype, jnp.floating):
                kind = "a number" if rank == 0 else "a vector of numbers"
                return Finding(False, f"{name} gives {_shapes(got)}, expected {kind}")
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        return Finding(False, f"{name} cannot be traced: {type(error).__name__}: {reason}")
    return Finding(True, "states are integer arrays, and step and undo keep their shapes")


def _shapes(tree: Any) -> str:
    def shape(leaf):
        return f"{leaf.dtype}{list(leaf.shape)}"

    return str(jax.tree.map(shape, tree)).replace("'", "")


def _is_integer(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_)


def _same_structure(one: Any, other: Any) -> bool:
    def shapes(tree):
        leaves, structure = jax.tree.flatten(tree)
        return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]

    return shapes(one) == shapes(other)


def _source(env: AbstractEnv) -> Finding:
    if env.is_terminal(env.init()):
        return Finding(False, "init is terminal: there is nothing to construct")
    if (mask := np.asarray(env.backward_mask(env.init()))).any():
        return Finding(False, f"backward_mask lists action {np.argmax(mask)} in init, the source")
    return Finding(True, "init is not terminal and has no parent")


@dataclass(frozen=True)
class _Case:
    """Distinct states of an environment, with edges between them: all of them, or a sample.

    Attributes:
        env: the environment.
        states: its states, along a leading axis.
        terminal: which of them are.
        source: by the number of the state, for each edge.
        action: of each edge.
        target: by the number of the state, for each edge.
        backward_mask: the environment's own, of each state.
        claims: a state and an action each, which `backward_mask` lists and no edge confirms.
    """

    env: AbstractEnv
    states: State
    terminal: Bool[np.ndarray, " states"]
    source: Int[np.ndarray, " edges"]
    action: Int[np.ndarray, " edges"]
    target: Int[np.ndarray, " edges"]
    backward_mask: Bool[np.ndarray, "states actions"]
    claims: Int[np.ndarray, "claims 2"]

    @staticmethod
    def of(space: StateSpace) -> "_Case":
        """Every state and every edge."""
        source, action = np.nonzero(space.child >= 0)
        target = space.child[source, action]
        mask = _over(space.env.backward_mask, space.states)
        claims = np.argwhere(mask & (space.parent < 0))
        terminal = np.arange(space.num_states) >= space.num_inner
        action = action.astype(np.int32)
        return _Case(space.env, space.states, terminal, source, action, target, mask, claims)

    @staticmethod
    def along(env: AbstractEnv, paths: Trajectories) -> "_Case":
        """The states on `paths`, by the time of their first visit, and random edges out of them."""
        visits = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), paths.states)
        visits = pack(visits)
        numbers = Numbers(visits.shape[1])
        for rows in np.split(visits, len(paths.actions) + 1):
            numbers.of(rows)
        sampled = unpack(jax.eval_shape(env.init), numbers.rows)
        source, action = _some_actions(env, sampled, len(numbers))
        children = _over(env.step, jax.tree.map(lambda x: x[source], sampled), action)
        target = numbers.of(pack(children))
        states = unpack(jax.eval_shape(env.init), numbers.rows)

        mask = _over(env.backward_mask, states)
        known = np.zeros_like(mask)
        known[target, action] = True
        claims = np.argwhere(mask & ~known)
        claims = np.random.default_rng(0).permutation(claims)[: _most_edges(env)]
        terminal = _over(env.is_terminal, states)
        return _Case(env, states, terminal, source, action, target, mask, claims)

    @property
    def num_states(self) -> int:
        return len(self.terminal)

    def at(self, index: Any) -> State:
        return jax.tree.map(lambda x: x[index], self.states)

    def name(self, index: Any) -> str:
        return _name(self.at(int(index)))


def _draw(env: AbstractEnv, key: PRNGKeyArray) -> Trajectories:
    """Uniform trajectories: `_TRAJECTORIES` of them, or as many as have room."""
    each = _width(env) * (env.max_steps + 1)
    require_memory(f"a trajectory of up to max_steps={env.max_steps:,}", each, "lower max_steps")
    fit = _BYTES // each
    num = max(1, min(_TRAJECTORIES, fit))
    policy = UniformPolicy(env.num_actions)
    return jax.jit(lambda key: rollout(env, policy, OnPolicy(), num, key=key))(key)


def _width(env: AbstractEnv) -> int:
    """The bytes that a state takes, or its mask if that takes more."""
    leaves = jax.tree.leaves(jax.eval_shape(env.init))
    return max(env.num_actions, sum(x.size * x.dtype.itemsize for x in leaves))


def _most_edges(env: AbstractEnv) -> int:
    return max(1, min(_EDGES, _BYTES // _width(env)))


def _some_actions(
    env: AbstractEnv, states: State, count: int
) -> tuple[Int[np.ndarray, " edges"], Int[np.ndarray, " edges"]]:
    """Edges out of `count` states, by state and action: all of them, or as many as have room."""
    most = min(env.num_actions, -(-_most_edges(env) // count))

    def draw(state, key):
        valid = env.forward_mask(state) & ~env.is_terminal(state)
        score = jnp.where(valid, jax.random.uniform(key, valid.shape), -1.0)
        score, action = jax.lax.top_k(score, most)
        return action, score >= 0

    action, valid = _over(draw, states, jax.random.split(jax.random.key(1), count))
    source, place = np.nonzero(valid)
    return source, action[source, place]


def _over(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function` over leading axes, as NumPy arrays, a batch at a time."""

    @jax.jit
    def mapped(arguments):
        return jax.lax.map(lambda one: function(*one), arguments, batch_size=_BATCH)

    return jax.tree.map(np.asarray, mapped(arguments))


def _name(state: State) -> str:
    return repr(jax.tree.map(lambda x: np.asarray(x).tolist(), state))


def _equal(one: State, other: State) -> Bool[np.ndarray, " n"]:
    """Which states along the leading axis are the same."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    equal = [(x == y).reshape(len(x), -1).all(axis=1) for x, y in pairs]
    return np.logical_and.reduce(equal)


def _length(space: StateSpace) -> Finding:
    longest, limit = space.num_levels - 1, space.env.max_steps  # or it would have been refused
    return Finding(
        True, f"every trajectory ends within max_steps={limit}: the longest has {longest}"
    )


def _ends(env: AbstractEnv, paths: Trajectories) -> Finding:
    if (lost := ~_over(env.is_terminal, paths.last)).any():
        state = _name(jax.tree.map(lambda x: x[np.argmax(lost)], paths.last))
        return Finding(
            False, f"a trajectory is still in {state} after max_steps={env.max_steps} steps"
        )
    return Finding(
        True,
        f"every trajectory ends within max_steps={env.max_steps}: the longest drawn has "
        f"{int(paths.lengths.max())}",
    )


def _goes_on(case: _Case) -> Finding:
    # States are in the order of their discovery: the first dead end was reached by valid actions.
    if (dead := ~case.terminal & ~_over(case.env.forward_mask, case.states).any(axis=1)).any():
        return Finding(
            False,
            f"no action is valid in {case.name(np.argmax(dead))}, which is not terminal: every "
            "construction must be able to end",
        )
    return Finding(True, "every state that is not terminal has a valid action")


def _rewards(case: _Case) -> Finding:
    ends = np.flatnonzero(case.terminal)
    values = _over(case.env.log_reward, case.at(ends))
    if (bad := np.isnan(values) | (values == np.inf)).any():
        state, value = case.name(ends[np.argmax(bad)]), values[np.argmax(bad)]
        return Finding(False, f"log_reward of {state} is {value}: expected a number or -inf")
    if (impossible := values == -np.inf).any():
        return Finding(
            False,
            f"{impossible.sum():,} objects that can be reached have reward zero, among them "
            f"{case.name(ends[np.argmax(impossible)])}: train refuses them; give them a small "
            "positive reward",
        )
    if (large := np.abs(values) > _LARGEST).any():
        state, value = case.name(ends[np.argmax(large)]), values[np.argmax(large)]
        return Finding(
            False,
            f"log_reward of {state} is {value:g}: in single precision, numbers beyond "
            f"{_LARGEST:,.0f} in size are rounded by more than a sixteenth",
        )
    return Finding(True, "every log_reward is a finite number")


def _observations(case: _Case) -> Finding:
    finite = _over(lambda state: jnp.isfinite(case.env.observe(state)).all(), case.states)
    if not finite.all():
        return Finding(False, f"observe is not finite in {case.name(np.argmin(finite))}")
    return Finding(True, "observe is finite in every state")


def _repeats(case: _Case) -> Finding:
    """Whether all methods give the same when they are traced and computed once more."""
    some = np.linspace(0, len(case.action) - 1, min(_REPEATED, len(case.action))).astype(int)
    env = case.env

    def all_methods(state, action):
        return {
            "step": env.step(state, action),
            "undo": env.undo(state, action),
            "forward_mask": env.forward_mask(state),
            "backward_mask": env.backward_mask(state),
            "is_terminal": env.is_terminal(state),
            "observe": env.observe(state),
            "log_reward": env.log_reward(state),
        }

    for place in (case.source[some], case.target[some]):
        once, twice = (_over(all_methods, case.at(place), case.action[some]) for _ in range(2))
        for name in once:
            same = jax.tree.map(
                lambda x, y: np.array_equal(x, y, equal_nan=x.dtype.kind == "f"),
                once[name],
                twice[name],
            )
            if not all(jax.tree.leaves(same)):
                return Finding(
                    False,
                    f"{name} is not deterministic: the same state gave two answers; randomness "
                    "belongs to the sampler",
                )
    return Finding(True, "every method gives the same answer twice")


def _terminals(case: _Case) -> Finding:
    ends = np.flatnonzero(case.terminal)
    mask = _over(case.env.forward_mask, case.at(ends))
    if mask.any():
        index, action = np.argwhere(mask)[0]
        state = case.name(ends[index])
        return Finding(False, f"action {action} is valid in {state}, which is terminal")
    return Finding(True, "terminal states, and only they, have no valid action")


def _undo(case: _Case) -> Finding:
    undone = _over(case.env.undo, case.at(case.target), case.action)
    if (wrong := ~_equal(undone, case.at(case.source))).any():
        edge = int(np.argmax(wrong))
        result = _name(jax.tree.map(lambda x: x[edge], undone))
        return Finding(
            False,
            f"undo does not invert step: action {case.action[edge]} leads from "
            f"{case.name(case.source[edge])} to {case.name(case.target[edge])}, and undo from "
            f"there to {result}",
        )
    return Finding(True, f"undo inverts step along all {len(case.action):,} edges")


def _forward_edges(case: _Case) -> Finding:
    if (hidden := ~case.backward_mask[case.target, case.action]).any():
        edge = int(np.argmax(hidden))
        return Finding(
            False,
            f"masks disagree: action {case.action[edge]} leads from "
            f"{case.name(case.source[edge])} to {case.name(case.target[edge])}, where "
            "backward_mask does not list it",
        )
    return Finding(True, "every valid action is listed by backward_mask where it leads")


def _backward_edges(case: _Case) -> Finding:
    """Claims beyond the edges that are known: each must be an edge of its own."""
    state, action = case.claims.T
    if len(state):
        states, action = case.at(state), action.astype(np.int32)
        parents = _over(case.env.undo, states, action)
        ended = _over(case.env.is_terminal, parents)
        valid = _over(case.env.forward_mask, parents)[np.arange(len(action)), action]
        back = _equal(_over(case.env.step, parents, action), states)
        if (wrong := ended | ~valid | ~back).any():
            claim = int(np.argmax(wrong))
            parent = _name(jax.tree.map(lambda x: x[claim], parents))
            why = "which does not lead here"
            why = "where it is not valid" if not valid[claim] else why
            why = "which is terminal" if ended[claim] else why
            return Finding(
                False,
                f"masks disagree: backward_mask lists action {action[claim]} in "
                f"{case.name(state[claim])}, but undo gives {parent}, {why}",
            )
    return Finding(True, "every action that backward_mask lists is valid where undo leads")


def _objects(space: StateSpace) -> Finding:
    if not isinstance(space.env, ListsObjects):
        return Finding(
            None,
            "not checked: that every object can be reached; list them in a method objects() "
            "(natgfn.envs.ListsObjects)",
        )
    objects = jax.tree.map(np.asarray, space.env.objects())
    listed, reached = _rows(objects), _rows(space.terminals)
    _, number = np.unique(np.concatenate([listed, reached]), axis=0, return_inverse=True)
    number = number.ravel()
    rewarded = _over(space.env.log_reward, objects) > -np.inf
    if (lost := rewarded & ~np.isin(number[: len(listed)], number[len(listed) :])).any():
        state = _name(jax.tree.map(lambda x: x[np.argmax(lost)], objects))
        return Finding(False, f"{lost.sum():,} objects cannot be reached, among them {state}")
    rewarded = space.log_rewards > -np.inf
    if (extra := rewarded & ~np.isin(number[len(listed) :], number[: len(listed)])).any():
        state = _name(jax.tree.map(lambda x: x[np.argmax(extra)], space.terminals))
        return Finding(False, f"objects() leaves out {state}, which can be reached")
    return Finding(True, f"all {len(listed):,} objects can be reached")


def _rows(states: State) -> Int[np.ndarray, "states columns"]:
    return np.concatenate(
        [np.asarray(x, np.int64).reshape(len(x), -1) for x in jax.tree.leaves(states)], axis=1
    )


def _backward_mass(space: StateSpace, mask: Bool[np.ndarray, "states actions"]) -> Finding:
    count = np.maximum(mask.sum(axis=1, keepdims=True), 1)
    with jax.enable_x64(True):
        log_pb = np.where(mask, -np.log(count), -np.inf)
        mass = np.asarray(backward_mass(space, jnp.asarray(log_pb)))[space.num_inner :]
    worst = int(np.argmax(np.abs(mass - 1)))
    if abs(mass[worst] - 1) > 1e-6:
        state = _name(jax.tree.map(lambda x: x[worst], space.terminals))
        return Finding(
            False,
            f"P_B sums to {mass[worst]:.4g} over the trajectories into {state}: backward_mask "
            "must list exactly the parents that can be reached from the source",
        )
    return Finding(True, "P_B, uniform over backward_mask, sums to one into every object")


def _way_back(env: AbstractEnv, objects: State, key: PRNGKeyArray) -> Finding:
    """P_B sums to one into an object if and only if all its trajectories begin at the source."""
    policy = UniformPolicy(env.num_actions)
    paths = jax.jit(lambda ends: rollback(env, policy, ends, key=key))(objects)
    starts = jax.tree.map(lambda x: np.asarray(x[0]), paths.states)
    init = jax.tree.map(lambda x, start: np.broadcast_to(x, start.shape), env.init(), starts)
    if (lost := ~_equal(starts, init)).any():
        worst = int(np.argmax(lost))
        state, end = (_name(jax.tree.map(lambda x: x[worst], tree)) for tree in (starts, objects))
        return Finding(
            False,
            f"P_B does not sum to one: {int(paths.lengths[worst])} steps back from {end} lead to "
            f"{state}, not to init; backward_mask must list exactly the parents that can be "
            "reached from the source",
        )
    return Finding(True, "every random trajectory back from an object arrives at init")
