r"""Check that an environment keeps the promises of `natgfn.envs.AbstractEnv`.

Every state is enumerated and every edge tried in both directions. The last check is the one
that no look at a single state can replace: trajectory balance has the target as its optimum
only if $\sum_{\tau : s_0 \to x} P_B(\tau \mid x) = 1$, and a backward mask that lists a parent
which cannot be reached loses the probability that goes there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from .envs import AbstractEnv, ListsObjects, State
from .statespace import StateSpace, backward_mass, enumerate_states


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


def check_environment(env: AbstractEnv) -> list[Finding]:
    """Check everything that training relies on, over every state of `env`.

    A check that others build on ends the list when it fails: the interface, the source, and
    the enumeration of the graph. All others are independent.

    Args:
        env: an environment small enough to enumerate.

    Returns:
        One finding a check, in the order in which they were made.
    """
    findings = []
    for check in (_interface, _source):
        findings.append(check(env))
        if not findings[-1].ok:
            return findings
    try:
        space = enumerate_states(env)
    except ValueError as error:
        return [*findings, Finding(False, str(error))]
    case = _Case.of(space)
    findings.append(Finding(True, f"the graph is acyclic, with {space.num_states:,} states"))
    findings.append(Finding(True, "every log_reward is a number or minus infinity"))
    findings += [check(case) for check in (_length, _terminals, _objects, _undo)]
    masks = [_forward_edges(case), _backward_edges(case)]
    if not all(finding.ok for finding in masks):
        unknown = Finding(None, "not checked: that P_B sums to one; mend the masks first")
        return [*findings, *masks, unknown]
    return [*findings, *masks, _backward_mass(case)]


def _interface(env: AbstractEnv) -> Finding:
    """Shapes and types, without computing anything."""
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
    """An enumerated environment, with its own masks and every edge."""

    env: AbstractEnv
    space: StateSpace
    source: Int[np.ndarray, " edges"]
    action: Int[np.ndarray, " edges"]
    target: Int[np.ndarray, " edges"]
    backward_mask: Bool[np.ndarray, "states actions"]

    @staticmethod
    def of(space: StateSpace) -> "_Case":
        source, action = np.nonzero(space.child >= 0)
        mask = _over(space.env.backward_mask, space.states)
        target = space.child[source, action]
        return _Case(space.env, space, source, action.astype(np.int32), target, mask)

    def at(self, index: Any) -> State:
        return jax.tree.map(lambda x: x[index], self.space.states)

    def name(self, index: Any) -> str:
        return _name(self.at(int(index)))


def _over(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function` over leading axes, as NumPy arrays."""
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(function))(*arguments))


def _name(state: State) -> str:
    return repr(jax.tree.map(lambda x: np.asarray(x).tolist(), state))


def _equal(one: State, other: State) -> Bool[np.ndarray, " n"]:
    """Which states along the leading axis are the same."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    equal = [(x == y).reshape(len(x), -1).all(axis=1) for x, y in pairs]
    return np.logical_and.reduce(equal)


def _length(case: _Case) -> Finding:
    longest, limit = case.space.num_levels - 1, case.env.max_steps
    if longest > limit:
        state = case.name(np.argmax(case.space.level))
        return Finding(False, f"it takes {longest} steps to {state}, but max_steps is {limit}")
    return Finding(
        True, f"every trajectory ends within max_steps={limit}: the longest has {longest}"
    )


def _terminals(case: _Case) -> Finding:
    mask = _over(case.env.forward_mask, case.space.terminals)
    if mask.any():
        index, action = np.argwhere(mask)[0]
        state = case.name(case.space.num_inner + index)
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
    """Claims beyond the edges that were enumerated: each must be an edge of its own."""
    state, action = np.nonzero(case.backward_mask & (case.space.parent < 0))
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


def _objects(case: _Case) -> Finding:
    if not isinstance(case.env, ListsObjects):
        return Finding(
            None,
            "not checked: that every object can be reached; list them in a method objects() "
            "(natgfn.envs.ListsObjects)",
        )
    objects = jax.tree.map(np.asarray, case.env.objects())
    listed, reached = _rows(objects), _rows(case.space.terminals)
    _, number = np.unique(np.concatenate([listed, reached]), axis=0, return_inverse=True)
    number = number.ravel()
    rewarded = _over(case.env.log_reward, objects) > -np.inf
    if (lost := rewarded & ~np.isin(number[: len(listed)], number[len(listed) :])).any():
        state = _name(jax.tree.map(lambda x: x[np.argmax(lost)], objects))
        return Finding(False, f"{lost.sum():,} objects cannot be reached, among them {state}")
    rewarded = case.space.log_rewards > -np.inf
    if (extra := rewarded & ~np.isin(number[len(listed) :], number[: len(listed)])).any():
        state = case.name(case.space.num_inner + np.argmax(extra))
        return Finding(False, f"objects() leaves out {state}, which can be reached")
    return Finding(True, f"all {len(listed):,} objects can be reached")


def _rows(states: State) -> Int[np.ndarray, "states columns"]:
    return np.concatenate(
        [np.asarray(x, np.int64).reshape(len(x), -1) for x in jax.tree.leaves(states)], axis=1
    )


def _backward_mass(case: _Case) -> Finding:
    count = np.maximum(case.backward_mask.sum(axis=1, keepdims=True), 1)
    with jax.enable_x64(True):
        log_pb = np.where(case.backward_mask, -np.log(count), -np.inf)
        mass = np.asarray(backward_mass(case.space, jnp.asarray(log_pb)))[case.space.num_inner :]
    worst = int(np.argmax(np.abs(mass - 1)))
    if abs(mass[worst] - 1) > 1e-6:
        return Finding(
            False,
            f"P_B sums to {mass[worst]:.4g} over the trajectories into "
            f"{case.name(case.space.num_inner + worst)}: backward_mask must list exactly the "
            "parents that can be reached from the source",
        )
    return Finding(True, "P_B, uniform over backward_mask, sums to one into every object")
