"""`natgfn check`: sound environments pass, and each mistake is found for what it is."""

import re
import runpy
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

import natgfn as ng
from natgfn.check import check_environment
from natgfn.envs import AbstractEnv, Hypergrid, Triangles

EXAMPLES = Path(__file__).parents[1] / "examples"
BrokenUndo = runpy.run_path(str(EXAMPLES / "broken_undo.py"))["BrokenUndo"]
Knapsack = runpy.run_path(str(EXAMPLES / "own_environment.py"))["Knapsack"]
UnnormalisedBackward = runpy.run_path(str(EXAMPLES / "unnormalised_backward.py"))[
    "UnnormalisedBackward"
]


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
    assert len(findings) == 11


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_each_mistake_is_found_for_what_it_is(kind: type[AbstractEnv]):
    failed = [finding.message for finding in check_environment(kind()) if finding.ok is False]
    assert len(failed) == 1
    assert "\n" not in failed[0]
    assert re.search(MISTAKES[kind], failed[0]), failed[0]


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
