"""A run as a value: everything that decides what it computes."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..algorithm import Algorithm, TrainState, stack_seeds
from ..envs import AbstractEnv, Assignments
from ..errors import require_whole
from ..graphical import separators, width
from ..memory import require_memory
from ..objectives import AbstractObjective, TrajectoryBalance
from ..optim import AbstractRule, Natural, SampleSpace
from ..policies import (
    AbstractDesign,
    ContextMLP,
    ContextTable,
    Flow,
    Table,
    Uniform,
    usual_design,
)
from ..sampling import AbstractProposal, OnPolicy, UniformMixture, Weighting
from ..sources import AbstractSource, Fresh, Known, Messages
from ..statespace import StateSpace, TooManyStates, enumerate_states
from ..watch import AbstractWatcher, Exact, Sampled
from ..watch import Messages as WatchMessages
from .record import describe

_FLOWS, _BACKWARD = 1, 2
"""Set the keys of state flows and of the backward policy apart from that of the forward one."""


USUAL, INSISTED = 2**17, 2**23
"""The most states that are listed: where that is not asked for, and where it is."""


LISTED, UNLISTED = 0.05, 0.002
"""The largest divergence of a step of the default for networks, in nats: where a list of all states
shows what the sampler misses, and where nothing does (`usual_proposal`)."""

LONG = 10_000
"""Steps of a trajectory beyond which it is said that they take long."""

SHARE = 0.1
"""Of the time of a run, that exact metrics should take by default; an estimate decides."""
SEEDS = 2**32
"""How many seeds there are: JAX takes the last 32 bits of a larger one."""


class Setup(eqx.Module):
    r"""Every argument of a run; also its configuration, and what its record says of it.

    What is None is decided by `decide`, which depends on the environment.
    """

    env: AbstractEnv
    """What is built, and its reward; it may be enumerated already (`statespace.StateSpace`)."""
    rule: AbstractRule | None = None
    """How a batch becomes an update; by default the natural step in sample space, with the
    settings that suit a table or a network (`optim.SampleSpace`), and the source that suits it."""
    policy: AbstractDesign | None = None
    """The forward policy: a table where the environment is enumerated or sees contexts, else a
    network."""
    objective: AbstractObjective = TrajectoryBalance()
    """What is minimised: trajectory balance with squared residuals, or any of `objectives`."""
    backward: AbstractDesign = Uniform()
    """The backward policy: uniform over the parents, or any other design, to learn it."""
    flows: AbstractDesign | None = None
    """The flows of states, where the objective learns them; by default like the policy."""
    proposal: AbstractProposal | None = None
    r"""$\mu$, which draws new trajectories: by default the policy itself; but with the default rule
    of a network whose states are not listed, some of its actions are random (`usual_proposal`)."""
    source: AbstractSource | None = None
    """Where the trajectories of an update come from: rollouts, replay, a teacher. By default
    rollouts; but with the default rule on listed states, half of them paths to any objects of
    the list (`usual_source`), and nothing at all where there are messages (`sources.Messages`)."""
    reference: AbstractProposal | None = None
    r"""$\nu$, the law that the objective averages over; by default the proposal."""
    weighting: Weighting = Weighting()
    """Clipping and self-normalisation of the weights between those laws."""
    batch: int = 128
    """Trajectories an update."""
    updates: int = 1_000
    """How many."""
    seeds: int = 1
    """How many runs, one after the other."""
    seed: int = 0
    """Of the first run; the others follow."""
    log_z: float = 0.0
    r"""Where $\log Z$ starts."""
    enumerate: bool | None = None
    """Whether to list every state first; by default if there are few."""
    max_states: int | None = None
    """The most states to list: 131,072 by default, or 8,388,608 where `enumerate` insists."""
    evaluate_every: int | None = None
    """Updates from one line of the record to the next; by default fifty lines in all, or as many
    as keep exact metrics near a tenth of the time, by an estimate."""
    watch: tuple[AbstractWatcher, ...] | None = None
    """What is looked at: by default `watch.Exact` on an enumerated environment, else
    `watch.Sampled`."""

    def __check_init__(self):
        for name in ("batch", "updates", "seeds", "max_states", "evaluate_every"):
            if (value := getattr(self, name)) is not None:
                require_whole(name, value, 1)
        require_whole("seed", self.seed, 0, SEEDS - 1)
        if self.seed + self.seeds > SEEDS:
            raise ValueError(f"seed must be below 2^32, all seeds of a run, got {self.seed}")
        if not np.isfinite(self.log_z):
            raise ValueError(f"log_z must be finite, got {self.log_z}")

    def configuration(self) -> dict[str, Any]:
        """The setup as plain JSON, with arrays by their hash."""
        return {f.name: describe(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def algorithm(self) -> Algorithm:
        """The compiled step of a decided setup."""
        assert self.rule is not None
        assert self.source is not None
        assert self.proposal is not None
        return Algorithm(
            env=self.env,
            rule=self.rule,
            objective=self.objective,
            proposal=self.proposal,
            source=self.source,
            reference=self.reference,
            weighting=self.weighting,
            batch=self.batch,
        ).with_traced_numbers()

    def flow(self, seed: int) -> Flow:
        """The policies of a decided setup before the first update."""
        assert self.policy is not None
        key = jax.random.key(seed)
        flow = Flow(
            self.policy(self.env, key=key),
            self.backward.backward(self.env, key=jax.random.fold_in(key, _BACKWARD)),
            jnp.array(self.log_z),
        )
        if not self.objective.learns_flows:
            return flow
        design, flow_key = self.flows or self.policy, jax.random.fold_in(key, _FLOWS)
        states = design(self.env, key=flow_key, outputs=1)
        return eqx.tree_at(lambda f: f.states, flow, states, is_leaf=lambda x: x is None)

    def start(self) -> TrainState:
        """The states of all seeds of a decided setup before the first update."""
        algorithm = self.algorithm()
        seeds = list(range(self.seed, self.seed + self.seeds))
        return stack_seeds(lambda seed: algorithm.init(self.flow(seed), seed), seeds)


def decide(setup: Setup) -> tuple[Setup, str]:
    """The same with nothing left open, and a line that says what was chosen.

    Raises:
        ValueError: the environment is not sound, or has more states than may be listed although
            `enumerate` insists, or an object of reward zero.
    """
    _require_room_for_a_state(setup.env)
    env, size = _listed(setup)
    policy = setup.policy or usual_design(env, setup.updates * setup.batch)
    rule, source, watch, proposal = setup.rule, setup.source, setup.watch, setup.proposal
    messages = isinstance(env, Assignments) and env.tree is not None and _sees_contexts(policy)
    if messages and isinstance(policy, ContextTable) and rule is None and source is None:
        rule, source = Natural.without_noise(), Messages()
    if rule is None:
        table = isinstance(policy, Table | ContextTable)
        unlisted = not (table or isinstance(env, StateSpace | Assignments))
        rule = SampleSpace() if table else SampleSpace.network(UNLISTED if unlisted else LISTED)
        source = source or usual_source(env, setup.reference)
        proposal = proposal or (usual_proposal(env) if unlisted else None)
    if watch is None:
        watch = (Exact(),) if isinstance(env, StateSpace) else (Sampled(),)
        watch = (WatchMessages(),) if messages else watch
    decided = dataclasses.replace(
        setup,
        env=env,
        policy=policy,
        rule=rule,
        source=source or Fresh(),
        proposal=proposal or OnPolicy(),
        watch=watch,
        enumerate=isinstance(env, StateSpace),
        evaluate_every=setup.evaluate_every or _usual_interval(setup, env, watch),
    )
    _require_room(decided)
    if isinstance(policy, ContextTable | ContextMLP) and policy.size is not None:
        size += f", at most {policy.size} of them seen"
    if (steps := int(env.max_steps)) > LONG:
        size += f"; up to {steps:,} steps a trajectory, so an update may take minutes"
    parts = {"policy": policy, "rule": rule, "source": decided.source}
    if not isinstance(decided.proposal, OnPolicy):
        parts["proposal"] = decided.proposal
    chosen = [f"{name} {type(part).__name__}" for name, part in parts.items()]
    if watch:
        chosen.append("watched by " + ", ".join(type(w).__name__ for w in watch))
    return decided, f"{size}; {', '.join(chosen)}"


def usual_source(env: AbstractEnv, reference: AbstractProposal | None) -> AbstractSource:
    """What goes with the default rule: half of every batch from the list of states, if any.

    The natural step corrects what a batch shows, and a policy's own trajectories do not show again
    what the first updates made improbable. Hypergrid H=24, 2,000 updates: KL of a table 0.73 with
    half of the modes missed on its own trajectories, 2.9e-4 with all of them found here, and 1.3
    for the best of three rates of Adam; of a network of 64 units 1.04, 9.5e-5 and, with Adam on the
    same batches, 3.0e-3. `docs/ideas/unit-step.md` has the rest, and what was not kept.

    Args:
        env: whether its states are listed.
        reference: the law that the objective averages over, if it was given: paths to known
            objects cannot be weighted by it.
    """
    return Known() if isinstance(env, StateSpace) and reference is None else Fresh()


def usual_proposal(env: AbstractEnv) -> AbstractProposal:
    """What goes with the default rule of a network where no list shows what it misses: in the
    longest trajectories two actions are random, in others fewer.

    Together with steps of 0.002 nats at most in place of 0.05. Either alone loses modes: hypergrid
    H=24, not listed, 2,000 updates, mean KL of three seeds 0.93 with neither, 0.23 with random
    actions alone, 0.93 with short steps alone, 4.1e-3 with both, 3.9e-3 for Adam at one rate.
    `docs/ideas/unit-step.md` has five more targets, on which both were chosen.
    """
    return UniformMixture(min(2 / int(env.max_steps), 0.5))


def _require_room_for_a_state(env: AbstractEnv) -> None:
    """Of an environment that may not be enumerated: all children of a state are made at once."""
    if not isinstance(env, StateSpace):
        name, actions = type(env).__name__, int(env.num_actions)
        children = actions * _bytes(jax.eval_shape(env.init))
        require_memory(f"{name}: the {actions:,} children of a state", children, "make it smaller")


def _require_room(setup: Setup) -> None:
    """The least that a decided setup takes: trajectories, and the states of all seeds."""
    env, watch = setup.env, setup.watch or ()
    num, steps = max(setup.batch, *(w.draws for w in watch), 0), int(env.max_steps)
    each = _bytes(jax.eval_shape(env.init)) + _ACTION
    require_memory(
        f"{num:,} trajectories of up to {steps:,} steps",
        num * steps * each,
        "lower batch, or draw fewer for metrics, as in watch=[{name='Sampled', num=32}]",
    )
    if setup.rule is not None and setup.rule.whole:
        gram = _NUMBER * setup.batch**2
        require_memory(f"the Gram matrix of batch={setup.batch:,}", gram, "lower batch")
    algorithm = setup.algorithm()
    try:
        state = eqx.filter_eval_shape(lambda: algorithm.init(setup.flow(setup.seed), setup.seed))
    except jax.errors.JAXTypeError:  # a part of your own that needs numbers, and is not estimated
        return
    require_memory(
        f"the parameters and memory of {setup.seeds:,} seeds",
        setup.seeds * _bytes(state),
        "take fewer seeds, a smaller policy or a smaller capacity",
    )


_NUMBER, _ACTION = 4, 9
"""Bytes of a number, and of a draw with the action that it gives and whether that counts."""


def _bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree) if hasattr(x, "dtype"))


def _usual_interval(setup: Setup, env: AbstractEnv, watch: tuple[AbstractWatcher, ...]) -> int:
    """Updates between two lines of the record.

    Exact metrics take about as long as $S / 2NT$ updates, for $S$ states and $N$ trajectories of at
    most $T$ steps. Measured: within a factor of 2.1 of that for tables and small networks on 8,000
    states or more; an eighth of it for a wide network, whose updates are dear; more than it on tiny
    grids, where a look takes some milliseconds whatever their size.
    """
    fifty = max(1, setup.updates // 50)
    if not (isinstance(env, StateSpace) and any(isinstance(w, Exact) for w in watch)):
        return fifty
    look = env.num_states / (2 * setup.batch * env.max_steps)
    return min(setup.updates, max(fifty, round(look / SHARE)))


def _sees_contexts(policy: AbstractDesign) -> bool:
    return isinstance(policy, ContextTable | ContextMLP)


def _listed(setup: Setup) -> tuple[AbstractEnv, str]:
    """The environment, enumerated if that is wanted and possible, and how large it is."""
    name = type(setup.env).__name__
    if isinstance(setup.env, Assignments) and not setup.enumerate:
        seen = separators(setup.env.graph, setup.env.order)
        return setup.env, f"{name}: {setup.env.max_steps} variables, width {width(seen)}"
    if setup.enumerate is False and not isinstance(setup.env, StateSpace):
        return setup.env, f"{name}: not enumerated, as asked"
    most = setup.max_states or (INSISTED if setup.enumerate else USUAL)
    try:
        space = enumerate_states(setup.env, max_states=most)
    except TooManyStates as error:
        if setup.enumerate:
            raise ValueError(
                f"{name} has more than max_states={most:,} states, and enumerate=True insists on "
                "a list of them: raise max_states, or leave enumerate out"
            ) from error
        return setup.env, f"{name}: more than {most:,} states, so not enumerated"
    if impossible := int(np.isinf(space.log_rewards).sum()):
        raise ValueError(
            f"{impossible:,} objects that can be reached have reward zero, and trajectory balance "
            "needs a finite log_reward: give them a small positive reward"
        )
    return space, f"{type(space.env).__name__}: {space.num_states:,} states, enumerated"
