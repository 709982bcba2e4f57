r"""Check that an environment keeps the promises of `natgfn.envs.AbstractEnv`.

Every state is enumerated and every edge tried in both directions. The last check is the one
that no look at a single state can replace: trajectory balance has the target as its optimum
only if $\sum_{\tau : s_0 \to x} P_B(\tau \mid x) = 1$, and a backward mask that lists a parent
which cannot be reached loses the probability that goes there.

Where there are too many states to list, random trajectories take their place: the states on
them, random edges out of these, and random trajectories back from their objects, which must all
arrive at the source.
"""

import jax

from ..envs import AbstractEnv
from ..statespace import StateSpace, TooManyStates, enumerate_states
from . import findings as find
from .case import Case, draw
from .findings import Finding


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
    for check in (find.interface, find.source):
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
    case = Case.of(space)
    findings = [
        Finding(True, f"the graph is acyclic, with {space.num_states:,} states"),
        find.rewards(case),
        find.observations(case),
        find.length(space),
        find.terminals(case),
        find.objects(space),
        find.undo(case),
        find.repeats(case),
    ]
    masks = [find.forward_edges(case), find.backward_edges(case)]
    if not all(finding.ok for finding in masks):
        unknown = Finding(None, "not checked: that P_B sums to one; mend the masks first")
        return [*findings, *masks, unknown]
    return [*findings, *masks, find.sums_to_one(space, case.backward_mask)]


def _check_sample(env: AbstractEnv, max_states: int) -> list[Finding]:
    there, back = jax.random.split(jax.random.key(0))
    paths = draw(env, there)
    case = Case.along(env, paths)
    extent = Finding(
        None,
        f"too many states to list (more than {max_states:,}): checked on "
        f"{paths.actions.shape[1]:,} random trajectories, {case.num_states:,} states and "
        f"{len(case.action):,} edges; not checked: that the graph is acyclic, and that "
        "every object can be reached",
    )
    if not (goes_on := find.goes_on(case)).ok:
        return [extent, goes_on]
    findings = [extent, goes_on, find.terminals(case), find.rewards(case), find.observations(case)]
    edges = [find.repeats(case), find.ends(env, paths), find.forward_edges(case), find.undo(case)]
    if edges[-1].ok:  # it is by undo that claims are checked
        edges.append(find.backward_edges(case))
    if not all(finding.ok for finding in edges):
        unknown = Finding(None, "not checked: that P_B sums to one; mend what failed first")
        return [*findings, *edges, unknown]
    return [*findings, *edges, find.way_back(env, paths.last, back)]
