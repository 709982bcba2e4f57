"""What an environment promises, one function a promise."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, PRNGKeyArray

from ..envs import AbstractEnv, ListsObjects, State
from ..errors import require_whole
from ..policies import UniformPolicy
from ..sampling import Trajectories, rollback
from ..statespace import StateSpace, backward_mass
from .case import Case, equal, over, told

_LARGEST = 2.0**20  # of a log_reward
_REPEATED = 2**12  # edges


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


def interface(env: AbstractEnv) -> Finding:
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


def source(env: AbstractEnv) -> Finding:
    if env.is_terminal(env.init()):
        return Finding(False, "init is terminal: there is nothing to construct")
    if (mask := np.asarray(env.backward_mask(env.init()))).any():
        return Finding(False, f"backward_mask lists action {np.argmax(mask)} in init, the source")
    return Finding(True, "init is not terminal and has no parent")


def length(space: StateSpace) -> Finding:
    longest, limit = space.num_levels - 1, space.env.max_steps  # or it would have been refused
    return Finding(
        True, f"every trajectory ends within max_steps={limit}: the longest has {longest}"
    )


def ends(env: AbstractEnv, paths: Trajectories) -> Finding:
    if (lost := ~over(env.is_terminal, paths.last)).any():
        state = told(jax.tree.map(lambda x: x[np.argmax(lost)], paths.last))
        return Finding(
            False, f"a trajectory is still in {state} after max_steps={env.max_steps} steps"
        )
    return Finding(
        True,
        f"every trajectory ends within max_steps={env.max_steps}: the longest drawn has "
        f"{int(paths.lengths.max())}",
    )


def goes_on(case: Case) -> Finding:
    # States are in the order of their discovery: the first dead end was reached by valid actions.
    if (dead := ~case.terminal & ~over(case.env.forward_mask, case.states).any(axis=1)).any():
        return Finding(
            False,
            f"no action is valid in {case.name(np.argmax(dead))}, which is not terminal: every "
            "construction must be able to end",
        )
    return Finding(True, "every state that is not terminal has a valid action")


def rewards(case: Case) -> Finding:
    ends = np.flatnonzero(case.terminal)
    values = over(case.env.log_reward, case.at(ends))
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


def observations(case: Case) -> Finding:
    finite = over(lambda state: jnp.isfinite(case.env.observe(state)).all(), case.states)
    if not finite.all():
        return Finding(False, f"observe is not finite in {case.name(np.argmin(finite))}")
    return Finding(True, "observe is finite in every state")


def repeats(case: Case) -> Finding:
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
        once, twice = (over(all_methods, case.at(place), case.action[some]) for _ in range(2))
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


def terminals(case: Case) -> Finding:
    ends = np.flatnonzero(case.terminal)
    mask = over(case.env.forward_mask, case.at(ends))
    if mask.any():
        index, action = np.argwhere(mask)[0]
        state = case.name(ends[index])
        return Finding(False, f"action {action} is valid in {state}, which is terminal")
    return Finding(True, "terminal states, and only they, have no valid action")


def undo(case: Case) -> Finding:
    undone = over(case.env.undo, case.at(case.target), case.action)
    if (wrong := ~equal(undone, case.at(case.source))).any():
        edge = int(np.argmax(wrong))
        result = told(jax.tree.map(lambda x: x[edge], undone))
        return Finding(
            False,
            f"undo does not invert step: action {case.action[edge]} leads from "
            f"{case.name(case.source[edge])} to {case.name(case.target[edge])}, and undo from "
            f"there to {result}",
        )
    return Finding(True, f"undo inverts step along all {len(case.action):,} edges")


def forward_edges(case: Case) -> Finding:
    if (hidden := ~case.backward_mask[case.target, case.action]).any():
        edge = int(np.argmax(hidden))
        return Finding(
            False,
            f"masks disagree: action {case.action[edge]} leads from "
            f"{case.name(case.source[edge])} to {case.name(case.target[edge])}, where "
            "backward_mask does not list it",
        )
    return Finding(True, "every valid action is listed by backward_mask where it leads")


def backward_edges(case: Case) -> Finding:
    """Claims beyond the edges that are known: each must be an edge of its own."""
    state, action = case.claims.T
    if len(state):
        states, action = case.at(state), action.astype(np.int32)
        parents = over(case.env.undo, states, action)
        ended = over(case.env.is_terminal, parents)
        valid = over(case.env.forward_mask, parents)[np.arange(len(action)), action]
        back = equal(over(case.env.step, parents, action), states)
        if (wrong := ended | ~valid | ~back).any():
            claim = int(np.argmax(wrong))
            parent = told(jax.tree.map(lambda x: x[claim], parents))
            why = "which does not lead here"
            why = "where it is not valid" if not valid[claim] else why
            why = "which is terminal" if ended[claim] else why
            return Finding(
                False,
                f"masks disagree: backward_mask lists action {action[claim]} in "
                f"{case.name(state[claim])}, but undo gives {parent}, {why}",
            )
    return Finding(True, "every action that backward_mask lists is valid where undo leads")


def objects(space: StateSpace) -> Finding:
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
    rewarded = over(space.env.log_reward, objects) > -np.inf
    if (lost := rewarded & ~np.isin(number[: len(listed)], number[len(listed) :])).any():
        state = told(jax.tree.map(lambda x: x[np.argmax(lost)], objects))
        return Finding(False, f"{lost.sum():,} objects cannot be reached, among them {state}")
    rewarded = space.log_rewards > -np.inf
    if (extra := rewarded & ~np.isin(number[len(listed) :], number[: len(listed)])).any():
        state = told(jax.tree.map(lambda x: x[np.argmax(extra)], space.terminals))
        return Finding(False, f"objects() leaves out {state}, which can be reached")
    return Finding(True, f"all {len(listed):,} objects can be reached")


def _rows(states: State) -> Int[np.ndarray, "states columns"]:
    return np.concatenate(
        [np.asarray(x, np.int64).reshape(len(x), -1) for x in jax.tree.leaves(states)], axis=1
    )


def sums_to_one(space: StateSpace, mask: Bool[np.ndarray, "states actions"]) -> Finding:
    count = np.maximum(mask.sum(axis=1, keepdims=True), 1)
    with jax.enable_x64(True):
        log_pb = np.where(mask, -np.log(count), -np.inf)
        mass = np.asarray(backward_mass(space, jnp.asarray(log_pb)))[space.num_inner :]
    worst = int(np.argmax(np.abs(mass - 1)))
    if abs(mass[worst] - 1) > 1e-6:
        state = told(jax.tree.map(lambda x: x[worst], space.terminals))
        return Finding(
            False,
            f"P_B sums to {mass[worst]:.4g} over the trajectories into {state}: backward_mask "
            "must list exactly the parents that can be reached from the source",
        )
    return Finding(True, "P_B, uniform over backward_mask, sums to one into every object")


def way_back(env: AbstractEnv, objects: State, key: PRNGKeyArray) -> Finding:
    """P_B sums to one into an object if and only if all its trajectories begin at the source."""
    policy = UniformPolicy(env.num_actions)
    paths = jax.jit(lambda ends: rollback(env, policy, ends, key=key))(objects)
    starts = jax.tree.map(lambda x: np.asarray(x[0]), paths.states)
    init = jax.tree.map(lambda x, start: np.broadcast_to(x, start.shape), env.init(), starts)
    if (lost := ~equal(starts, init)).any():
        worst = int(np.argmax(lost))
        state, end = (told(jax.tree.map(lambda x: x[worst], tree)) for tree in (starts, objects))
        return Finding(
            False,
            f"P_B does not sum to one: {int(paths.lengths[worst])} steps back from {end} lead to "
            f"{state}, not to init; backward_mask must list exactly the parents that can be "
            "reached from the source",
        )
    return Finding(True, "every random trajectory back from an object arrives at init")
