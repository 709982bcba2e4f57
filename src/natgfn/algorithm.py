"""Algorithm 1 as one compiled step: sample, evaluate, precondition, update."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, UInt32

from .envs import AbstractEnv, CountsModes
from .objectives import (
    AbstractObjective,
    Batch,
    Expected,
    TrajectoryBalance,
    evaluate,
    expected,
)
from .optim import AbstractRule, takes_steps
from .policies import Flow
from .sampling import DEVICES, AbstractProposal, OnPolicy, Trajectories, Weighting, rollout
from .sources import AbstractSource, Fresh
from .statespace import StateSpace

_MEMORY = 0x3E3
"""Sets the keys of what a source remembers apart from those of training."""


class TrainState(eqx.Module):
    """Everything a run needs to go on; what is not here cannot change a result."""

    flow: Flow
    optimiser: PyTree
    memory: PyTree
    """What the source of trajectories remembers."""
    visited: Bool[Array, " objects"] | Bool[Array, " modes"] | None
    """Which objects training has drawn so far, where they have been enumerated; else which modes
    it has found, where the environment lists them (`envs.CountsModes`)."""
    key: UInt32[Array, "2"]
    step: Int[Array, ""]
    rejected: Int[Array, ""]
    """How many steps would have produced a NaN or an infinity, and were not taken."""


class StepInfo(NamedTuple):
    """What a person wants to see of a step; nothing of it is carried on."""

    loss: Float[Array, ""]
    accepted: Bool[Array, ""]


class Algorithm(eqx.Module):
    r"""Damped natural-gradient training (`alg:natgrad_gflownet`), or any other update rule.

    Attributes:
        env: the environment, enumerated or not.
        rule: how a batch becomes an update.
        objective: what is minimised.
        proposal: $\mu$, which draws new trajectories.
        source: where the trajectories of an update come from: rollouts, replay, a teacher.
        reference: $\nu$, over which the objective is averaged; None for the proposal.
        weighting: how ratios of laws become weights.
        batch: trajectories an update.
    """

    env: AbstractEnv
    rule: AbstractRule
    objective: AbstractObjective = TrajectoryBalance()
    proposal: AbstractProposal = OnPolicy()
    source: AbstractSource = Fresh()
    reference: AbstractProposal | None = None
    weighting: Weighting = Weighting()
    batch: int = 128

    def with_traced_numbers(self) -> "Algorithm":
        """The same, with rates and dampings as values of the compiled program, not parts of it.

        So are the lengths of schedules: a longer run is not compiled again.
        """

        def trace(part: Any) -> Any:
            if takes_steps(part):
                return jax.tree.map(jnp.asarray, part)
            return jnp.asarray(part) if isinstance(part, float) else part

        traced = jax.tree.map(trace, self, is_leaf=takes_steps)
        return eqx.tree_at(lambda a: a.env, traced, self.env)

    def init(self, flow: Flow, seed: int) -> TrainState:
        params = eqx.filter(flow, eqx.is_inexact_array)
        key = jax.random.key(seed)
        return TrainState(
            flow=flow,
            optimiser=self.rule.transform().init(params),
            memory=self.source.init(self.env, flow, key=jax.random.fold_in(key, _MEMORY)),
            visited=_nothing_visited(self.env),
            key=jax.random.key_data(key),
            step=jnp.array(0),
            rejected=jnp.array(0),
        )

    def draw(self, flow: Flow, key: PRNGKeyArray) -> Batch:
        """Sample new trajectories and evaluate them."""
        paths = rollout(self.env, flow.forward, self.proposal, self.batch, key=key)
        return self.evaluate(flow, paths)

    def evaluate(self, flow: Flow, paths: Trajectories) -> Batch:
        return evaluate(
            self.objective,
            self.env,
            flow,
            paths,
            proposal=self.proposal,
            reference=self.reference,
            weighting=self.weighting,
            whole=self.rule.whole,
        )

    def step(self, state: TrainState) -> tuple[TrainState, StepInfo]:
        """One update, rejected as a whole if any number that it changes would not be finite."""
        now = replace(self, proposal=self.proposal.at(state.step))
        with jax.default_matmul_precision("highest"):
            return now._step(state)

    def _step(self, state: TrainState) -> tuple[TrainState, StepInfo]:
        key, sample_key = jax.random.split(jax.random.wrap_key_data(state.key))
        flow, of_draws = state.flow, (self.env, state.flow, self.proposal, self.batch)
        new_key = jax.random.fold_in(sample_key, _MEMORY)
        memory = self.source.gather(*of_draws, state.memory, key=new_key)
        if self.source.in_expectation:
            batch: Any = expected(self.objective, self.env, flow)
        else:
            paths = self.source.draw(*of_draws, memory, state.step, key=sample_key)
            batch = self.source.weigh(flow, self.evaluate(flow, paths), memory, state.step)
        params, static = eqx.partition(flow, eqx.is_inexact_array)
        gradient: Any = batch.gradient()
        context = self.rule.context(self.env, flow, batch) | {"step": state.step}
        updates, optimiser = self.rule.transform().update(
            gradient, state.optimiser, params, **context
        )
        memory = self.source.learn(self.env, batch, memory, state.step)
        proposed = (eqx.apply_updates(params, updates), optimiser, memory)
        accepted = all_finite(proposed)
        params, optimiser, memory = jax.tree.map(
            lambda new, old: jnp.where(accepted, new, old) if eqx.is_array(new) else new,
            proposed,
            (params, state.optimiser, state.memory),
        )
        new_state = TrainState(
            flow=eqx.combine(params, static),
            optimiser=optimiser,
            memory=memory,
            visited=_visit(self.env, state.visited, batch),
            key=jax.random.key_data(key),
            step=state.step + 1,
            rejected=state.rejected + ~accepted,
        )
        return new_state, StepInfo(batch.loss, accepted)


def _nothing_visited(env: AbstractEnv) -> Bool[Array, " n"] | None:
    if isinstance(env, StateSpace):
        return jnp.zeros(env.num_terminal, bool)
    return jnp.zeros(env.num_modes, bool) if isinstance(env, CountsModes) else None


def _visit(
    env: AbstractEnv, visited: Bool[Array, " n"] | None, batch: Batch | Expected
) -> Bool[Array, " n"] | None:
    """What has been visited after the trajectories of a batch."""
    if visited is None:
        return None
    ends = batch.paths.last
    if isinstance(env, StateSpace):
        return visited.at[ends - env.num_inner].set(True)
    assert isinstance(env, CountsModes)
    return visited | jnp.any(jax.vmap(env.finds)(ends), axis=0)


def discovered(env: AbstractEnv, states: TrainState) -> Int[np.ndarray, " seeds"] | None:
    """How many modes the training of each seed has drawn so far; None if that is not known."""
    if states.visited is None:
        return None
    visited = np.asarray(states.visited)
    return np.sum(visited & env.modes if isinstance(env, StateSpace) else visited, axis=1)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no floating-point number of a tree is NaN or infinite."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves]))


def advance(
    algorithm: Algorithm, states: TrainState, count: Int[Array, ""], mesh: Mesh | None = None
) -> tuple[TrainState, Float[Array, " seeds"]]:
    """`count` updates of every seed, as many side by side as there are cores; also their mean loss.

    A seed is a program of its own on a thread of its own, so its results do not depend on the
    others. Under `vmap` every branch and early exit would become doing all of the work, and
    networks would be several times slower. Over the devices of a `mesh`, which share each batch
    (`sampling.sharing`), seeds take turns.
    """
    number, updates = states.step.size, int(count)
    wide = jnp.result_type(float) == jnp.float64
    seeds = _apart(states)
    totals = [jnp.array(0.0)] * number
    if mesh is not None:
        for seed in range(number):
            seeds[seed], totals[seed] = _advance_shared(algorithm, seeds[seed], count, mesh)
        return _stacked(seeds), jnp.stack(totals) / updates

    def go(seed: int, part: int) -> None:
        with jax.enable_x64(wide):  # threads have settings of their own
            seeds[seed], total = advance_one(algorithm, seeds[seed], jnp.array(part))
            totals[seed] = jax.block_until_ready(totals[seed] + total)

    if number == 1:
        go(0, updates)
    else:
        go(0, 0)  # compiles, if need be
        with ThreadPoolExecutor(min(number, os.cpu_count() or 1)) as threads:
            # In halves, so that an odd number of seeds leaves no core idle for long. All first
            # halves are begun before a second one, so that none waits for what has not begun.
            halves = [threads.submit(go, seed, updates - updates // 2) for seed in range(number)]

            def rest(seed: int) -> None:
                halves[seed].result()
                go(seed, updates // 2)

            list(threads.map(rest, range(number)))
    return _stacked(seeds), jnp.stack(totals) / updates


@eqx.filter_jit(donate="all-except-first")
def advance_one(
    algorithm: Algorithm, state: TrainState, count: Int[Array, ""]
) -> tuple[TrainState, Float[Array, ""]]:
    """`count` updates of one seed, and the sum of their losses.

    The count is a value, not a shape: a run is compiled once, whatever its chunks.
    """
    dynamic, static = eqx.partition(state, eqx.is_array)

    def update(_, carry):
        dynamic, total = carry
        state, info = algorithm.step(eqx.combine(dynamic, static))
        return eqx.filter(state, eqx.is_array), total + info.loss

    dynamic, total = jax.lax.fori_loop(0, count, update, (dynamic, jnp.array(0.0)))
    return eqx.combine(dynamic, static), total


def mesh_of(devices: int) -> Mesh:
    """The first so many devices, in order."""
    return Mesh(np.array(jax.devices()[:devices]), (DEVICES,))


def _advance_shared(
    algorithm: Algorithm, state: TrainState, count: Int[Array, ""], mesh: Mesh
) -> tuple[TrainState, Float[Array, ""]]:
    """`advance_one` with batches that the devices of a mesh share. All have the same state, of
    which one copy comes back."""
    everywhere = NamedSharding(mesh, PartitionSpec())

    def spread(x: Any) -> Any:
        if not eqx.is_array(x):
            return x
        return jax.make_array_from_process_local_data(everywhere, np.asarray(x))

    algorithm, state, count = jax.tree.map(spread, (algorithm, state, count))
    found = _shared(algorithm, state, count, mesh)
    return jax.tree.map(lambda x: x.addressable_data(0) if eqx.is_array(x) else x, found)


@eqx.filter_jit(donate="all-except-first")
def _shared(
    algorithm: Algorithm, state: TrainState, count: Int[Array, ""], mesh: Mesh
) -> tuple[TrainState, Float[Array, ""]]:
    dynamic, static = eqx.partition((algorithm, state, count), eqx.is_array)

    def one_device(dynamic):
        return eqx.filter(advance_one(*eqx.combine(dynamic, static)), eqx.is_array)

    # What comes out is the same on all devices, which JAX cannot see through branches and loops.
    spec = PartitionSpec()
    shared = jax.shard_map(one_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    advanced, total = shared(dynamic)
    return eqx.combine(advanced, eqx.filter(state, eqx.is_array, inverse=True)), total


def stack_seeds(make: Callable[[int], TrainState], seeds: list[int]) -> TrainState:
    """The states of all seeds along a leading axis."""
    return _stacked([make(seed) for seed in seeds])


@eqx.filter_jit
def _stacked(states: list[TrainState]) -> TrainState:
    def stack(*leaves):
        if not eqx.is_array(leaves[0]):
            return leaves[0]
        # Naming the type makes it strong: a weak one would be compiled for again later.
        return jnp.stack(leaves).astype(leaves[0].dtype)

    return jax.tree.map(stack, *states)


@eqx.filter_jit
def _apart(states: TrainState) -> list[TrainState]:
    """The opposite of `_stacked`."""
    return [of_seed(states, seed) for seed in range(states.step.size)]


def of_seed(tree: PyTree, seed: int) -> Any:
    """One seed of what `stack_seeds` has put together."""
    return jax.tree.map(lambda x: x[seed] if eqx.is_array(x) else x, tree)
