"""`natgfn check`: sound environments pass, and each mistake is found for what it is."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_undo import BrokenUndo
from jaxtyping import Array
from unnormalised_backward import UnnormalisedBackward

import natgfn as ng
from examples.own_environment import Knapsack
from natgfn.check import check_environment
from natgfn.check.case import Case
from natgfn.envs import AbstractEnv, Hypergrid, Triangles
from natgfn.policies import UniformPolicy
from natgfn.sampling import OnPolicy, rollout
from natgfn.statespace import enumerate_states


class Basket(NamedTuple):
    chosen: Array
    closed: Array


class Subsets(AbstractEnv):
    """Subsets of three items, filled one by one and closed; the sound one."""

    num_actions: int = 4
    max_steps: int = 4

    def init(self):
        return Basket(jnp.zeros(3, bool), jnp.array(False))

    def _item(self, action):
        return jnp.arange(3) == action

    def step(self, state, action):
        return Basket(state.chosen | self._item(action), jnp.asarray(action == 3))

    def undo(self, state, action):
        return Basket(state.chosen & ~self._item(action), jnp.array(False))

    def forward_mask(self, state):
        return ~state.closed & jnp.append(~state.chosen, True)

    def backward_mask(self, state):
        return jnp.append(~state.closed & state.chosen, state.closed)

    def is_terminal(self, state):
        return state.closed

    def observe(self, state):
        return state.chosen.astype(float)

    def log_reward(self, state):
        return jnp.sum(state.chosen).astype(float)

    def objects(self):
        every = (jnp.arange(8)[:, None] >> jnp.arange(3)) & 1
        return Basket(every.astype(bool), jnp.ones(8, bool))


class UndoKeepsTheItem(Subsets):
    def undo(self, state, action):
        return Basket(state.chosen, jnp.array(False))


class HiddenParent(Subsets):
    def backward_mask(self, state):
        several = jnp.sum(state.chosen) > 1
        return super().backward_mask(state).at[0].min(~several)


class FalseParent(Subsets):
    def backward_mask(self, state):
        return jnp.append(jnp.full(3, ~state.closed & state.chosen.any()), state.closed)


class TerminalParent(Subsets):
    def undo(self, state, action):
        state = super().undo(state, action)
        return Basket(state.chosen, jnp.asarray((action == 0) & ~state.chosen.all()))

    def backward_mask(self, state):
        return super().backward_mask(state).at[0].max(~state.closed & state.chosen[1])

    def forward_mask(self, state):
        return super().forward_mask(state).at[0].set(False)

    def objects(self):
        return jax.tree.map(lambda x: x[::2], super().objects())


class ParentOfTheSource(Subsets):
    def backward_mask(self, state):
        return super().backward_mask(state).at[1].max(~state.chosen.any() & ~state.closed)


class Cycle(Subsets):
    def step(self, state, action):
        return Basket(state.chosen ^ self._item(action), jnp.asarray(action == 3))

    def forward_mask(self, state):
        return jnp.full(4, ~state.closed)


class DeadEnd(Subsets):
    def forward_mask(self, state):
        return super().forward_mask(state).at[3].min(~state.chosen.all())


class TwoParents(Subsets):
    def step(self, state, action):
        return Basket(jnp.ones(3, bool), jnp.asarray(action == 3))


class UnreachableObject(Subsets):
    def forward_mask(self, state):
        return super().forward_mask(state).at[2].set(False)


class ForgottenObject(Subsets):
    def objects(self):
        return jax.tree.map(lambda x: x[1:], super().objects())


class NanReward(Subsets):
    def log_reward(self, state):
        return jnp.log(jnp.sum(state.chosen) - 1.0)


class TooShort(Subsets):
    max_steps: int = 3


class MoveOn(Subsets):
    def forward_mask(self, state):
        return jnp.append(~state.chosen, ~state.closed)


class EndsAtOnce(Subsets):
    def is_terminal(self, state):
        return jnp.array(True)


class FloatState(Subsets):
    def init(self):
        return Basket(jnp.zeros(3), jnp.array(False))


class GrowingState(Subsets):
    def step(self, state, action):
        return Basket(jnp.append(state.chosen, True), state.closed)


class ShortMask(Subsets):
    def forward_mask(self, state):
        return ~state.chosen


class Crash(Subsets):
    def observe(self, state):
        return state.no_such_field


MISTAKES = {
    BrokenUndo: r"undo does not invert step: action 1 leads from Word\(letters=\[0, 0, 0\]",
    UndoKeepsTheItem: r"undo does not invert step: action \d leads from Basket",
    HiddenParent: r"masks disagree: action 0 leads from .* where backward_mask does not list it",
    FalseParent: r"masks disagree: backward_mask lists action \d in .* does not lead here",
    TerminalParent: r"masks disagree: backward_mask lists action 0 in .* which is terminal",
    ParentOfTheSource: r"backward_mask lists action 1 in init, the source",
    Cycle: r"the graph has a cycle through or before Basket\(chosen=",
    DeadEnd: r"no action is valid in Basket\(chosen=\[True, True, True\], closed=False\)",
    TwoParents: r"action \d leads from two states to Basket\(chosen=\[True, True, True\]",
    UnreachableObject: r"4 objects cannot be reached, among them Basket\(chosen=\[False, False, T",
    ForgottenObject: r"objects\(\) leaves out Basket\(chosen=\[False, False, False\], closed=True",
    NanReward: r"log_reward of Basket\(chosen=\[False, False, False\], closed=True\) is nan",
    TooShort: r"it takes 4 steps to Basket\(chosen=\[True, True, True\].*max_steps is 3",
    MoveOn: r"action \d is valid in Basket\(.*closed=True\), which is terminal",
    EndsAtOnce: r"init is terminal",
    FloatState: r"init gives Basket\(chosen=float32\[3\].*a state must be made of integers",
    GrowingState: r"step gives Basket\(chosen=bool\[4\], .*expected Basket\(chosen=bool\[3\]",
    ShortMask: r"forward_mask gives bool\[3\], expected bool\[4\]",
    Crash: r"observe cannot be traced: AttributeError: .*no_such_field",
    UnnormalisedBackward: r"P_B sums to 0\.1944 over the trajectories into Walker\(place=-2,",
}


@pytest.mark.parametrize(
    "env", [Hypergrid(side=4), Triangles(nodes=3), Subsets(), Knapsack()], ids=repr
)
def test_sound_environments_pass(env: AbstractEnv):
    findings = check_environment(env)
    assert all(finding.ok for finding in findings)
    assert len(findings) == 13


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_each_mistake_is_found_for_what_it_is(kind: type[AbstractEnv]):
    failed = [finding.message for finding in check_environment(kind()) if finding.ok is False]
    assert len(failed) == 1
    assert "\n" not in failed[0]
    assert re.search(MISTAKES[kind], failed[0]), failed[0]


class Large(Hypergrid):
    """More states than are listed; the sound one."""

    side: int = 20
    dims: int = 8


class LargeUndo(Large):
    """Never goes back to 3."""

    def undo(self, state, action):
        before = super().undo(state, action)
        return before._replace(cell=jnp.where(before.cell == 3, 4, before.cell))


class LargeUnreachable(Large):
    """Lists parents below zero, from which the same action does lead back."""

    def backward_mask(self, state):
        listed = (state.cell > 0) | (state.cell > -3) & (state.cell != 0).any()
        return super().backward_mask(state).at[:-1].set(~state.stopped & listed)


class LargeFalseParent(Large):
    """Lists a parent below zero, where no action is valid."""

    def backward_mask(self, state):
        return super().backward_mask(state).at[5].max(~state.stopped & (state.cell[0] > 1))

    def forward_mask(self, state):
        return super().forward_mask(state) & (state.cell >= 0).all()


class LargeHidden(Large):
    def backward_mask(self, state):
        return super().backward_mask(state).at[2].min(state.cell[2] < 3)


class LargeMoveOn(Large):
    def forward_mask(self, state):
        return jnp.append(state.cell < self.side - 1, ~state.stopped)


class LargeDeadEnd(Large):
    """Cannot stop, nor go on, with three coordinates above zero."""

    def forward_mask(self, state):
        return super().forward_mask(state) & (jnp.sum(state.cell > 0) < 3)


class LargeNan(Large):
    def log_reward(self, state):
        return jnp.where(state.cell.sum() == 4, jnp.nan, super().log_reward(state))


class LargeInfinite(Large):
    def observe(self, state):
        return super().observe(state) / (state.cell[1] - 2.0)


class LargeTooShort(Large):
    @property
    def max_steps(self):
        return 5


LARGE_MISTAKES = {
    LargeUndo: r"undo does not invert step: action \d leads from GridState\(cell=.* there to Grid",
    LargeUnreachable: r"P_B does not sum to one: \d+ steps back from .* lead to .*, not to init",
    LargeFalseParent: r"backward_mask lists action 5 in .* gives .*-1.*where it is not valid",
    LargeHidden: r"masks disagree: action 2 leads from .* where backward_mask does not list it",
    LargeMoveOn: r"action \d is valid in GridState\(.*stopped=True\), which is terminal",
    LargeDeadEnd: r"no action is valid in GridState\(.*stopped=False\), which is not terminal",
    LargeNan: r"log_reward of GridState\(.*stopped=True\) is nan: expected a number or -inf",
    LargeInfinite: r"observe is not finite in GridState\(cell=\[\d+, 2, ",
    LargeTooShort: r"a trajectory is still in GridState\(.*stopped=False\) after max_steps=5 steps",
}


def test_a_sound_environment_too_large_to_list_passes_on_a_sample():
    findings = check_environment(Large(), max_states=1000)
    assert [str(f) for f in findings if f.ok is False] == []
    (unknown,) = [f.message for f in findings if f.ok is None]
    extent = r"too many states to list \(more than 1,000\): .* 1,000 random trajectories, [\d,]+ st"
    assert re.match(extent, unknown)
    assert len(findings) == 13


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGE_MISTAKES, ids=lambda kind: kind.__name__)
def test_each_mistake_is_found_on_a_sample(kind: type[AbstractEnv]):
    findings = check_environment(kind(), max_states=1000)
    failed = [finding.message for finding in findings if finding.ok is False]
    assert len(failed) == 1
    assert "\n" not in failed[0]
    assert re.search(LARGE_MISTAKES[kind], failed[0]), failed[0]


def test_a_sample_has_edges_of_the_environment_and_no_others():
    """Against the enumeration: all edges out of the states on trajectories, or some of them."""
    env = Subsets()
    space = enumerate_states(env)

    def names(states):
        return [(*map(int, chosen), bool(end)) for chosen, end in zip(*states, strict=True)]

    number = {name: i for i, name in enumerate(names(space.states))}
    paths = rollout(env, UniformPolicy(4), OnPolicy(), 200, key=jax.random.key(0))
    for most in (10**6, 20):
        case = Case.along(env, paths, edges=most)
        here = [number[name] for name in names(case.states)]
        edges = zip(case.source, case.action, case.target, strict=True)
        found = [(here[s], int(a), here[t]) for s, a, t in edges]
        every = {(s, a, int(t)) for (s, a), t in np.ndenumerate(space.child) if t >= 0}
        assert len(set(found)) == len(found)
        assert set(found) <= every
        assert (set(found) == every) == (most > 20)
        listed = {(here[s], int(a)) for s, a in case.claims}
        assert listed == {(t, a) for _, a, t in every - set(found)}
        np.testing.assert_array_equal(case.terminal, np.array(here) >= space.num_inner)


def test_what_is_not_checked_is_said():
    unknown = [f.message for f in check_environment(BrokenUndo()) if f.ok is None]
    assert len(unknown) == 1
    assert "objects()" in unknown[0]


def test_p_b_waits_for_the_masks():
    unknown = [f.message for f in check_environment(HiddenParent()) if f.ok is None]
    assert unknown == ["not checked: that P_B sums to one; mend the masks first"]


def test_the_sum_of_p_b_is_that_of_all_trajectories():
    """By hand: into (-2, 3), the parents listed are -2 and -1 (of time 2), a half each."""
    uniform = {(0, 0): 1.0}
    for time in range(1, 4):
        for place in range(-2, 3):
            parents = [x for x in (place - 1, place, place + 1) if abs(x) <= 2]
            mass = sum(uniform.get((x, time - 1), 0.0) for x in parents) / len(parents)
            uniform[place, time] = mass
    worst = check_environment(UnnormalisedBackward())[-1].message
    assert f"{uniform[-2, 3]:.4g}" in worst


def test_the_example_trains():
    run = ng.train(Knapsack(), updates=20, batch=32, progress=False)
    assert run.metrics["kl"][-1, 0] < 0.05 * run.metrics["kl"][0, 0]
