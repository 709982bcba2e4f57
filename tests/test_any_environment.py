"""Training where states are listed and where they are not: the same engine, through one door."""

import functools
import json
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgfn as ng
from natgfn.algorithm import Algorithm, TrainState
from natgfn.envs import AppendedBitSequences, BitSequences, Hypergrid
from natgfn.objectives import DetailedBalance
from natgfn.optim import Adam, Natural, SampleSpace
from natgfn.policies import Network, Table, Uniform
from natgfn.sampling import OnPolicy, UniformMixture, names_of
from natgfn.sources import (
    ACE,
    AbstractSource,
    Fresh,
    Known,
    Mixed,
    Perturbed,
    Recall,
    Replay,
    Teacher,
)
from natgfn.statespace import StateSpace, enumerate_states
from natgfn.training import Setup, decide, load_setup
from natgfn.watch import AbstractWatcher, Exact, Line, Sampled, Snapshots

GRID = Hypergrid(side=4)
LARGE = Hypergrid(side=20, dims=8)
BITS = AppendedBitSequences(length=24, word=4, modes=5, radius=8)
SMALL = Network(width=6, depth=1)
QUIET = {"batch": 8, "progress": False}


# What is decided.


def test_few_states_are_listed_and_learned_by_a_table():
    setup, said = decide(Setup(GRID))
    assert isinstance(setup.env, StateSpace)
    assert (setup.policy, setup.rule, setup.watch) == (Table(), SampleSpace(), (Exact(),))
    assert setup.source == Known()
    assert said == (
        "Hypergrid: 32 states, enumerated; policy Table, rule SampleSpace, source Known, "
        "watched by Exact"
    )


def test_too_many_states_are_not_and_a_network_learns():
    setup, said = decide(Setup(LARGE, max_states=1_000))
    assert setup.env is LARGE
    assert (setup.policy, setup.rule) == (Network(), SampleSpace.network(kl=0.002))
    assert setup.proposal == UniformMixture(2 / LARGE.max_steps)
    assert (setup.source, setup.watch) == (Fresh(), (Sampled(),))
    assert said.startswith("Hypergrid: more than 1,000 states, so not enumerated")


def test_trajectories_that_take_long_are_announced():
    assert "up to 199,999 steps a trajectory" in decide(Setup(ng.envs.Hypergrid(side=100_000)))[1]
    assert "steps" not in decide(Setup(LARGE, max_states=1_000))[1]


def test_a_network_on_a_small_environment_has_the_rule_of_networks_and_the_list():
    setup, _ = decide(Setup(GRID, policy=Network()))
    assert (setup.rule, setup.source) == (SampleSpace.network(), Known())
    assert setup.proposal == OnPolicy()


@pytest.mark.parametrize("given", [{"rule": SampleSpace.network()}, {"proposal": OnPolicy()}])
def test_only_the_default_rule_explores_by_itself(given):
    assert decide(Setup(LARGE, max_states=1_000, **given))[0].proposal == OnPolicy()


@pytest.mark.parametrize("policy", [Table(), Network()])
def test_a_rule_that_was_written_down_is_used_as_written(policy):
    rule = SampleSpace(damping=1e-3)
    assert decide(Setup(GRID, rule, policy=policy))[0].rule is rule


@pytest.mark.parametrize(
    "given",
    [
        {"rule": SampleSpace()},
        {"enumerate": False},
        {"reference": OnPolicy()},  # which paths to known objects would not be weighted by
        {"source": Fresh()},
    ],
    ids=lambda given: next(iter(given)),
)
def test_only_the_default_rule_on_a_list_is_shown_objects_of_it(given):
    assert decide(Setup(GRID, **given))[0].source == Fresh()


@pytest.mark.parametrize(("batch", "every"), [(128, 20), (1, 163)])
def test_exact_metrics_take_a_tenth_of_the_time(batch, every):
    """2,048 states, 63 steps: of single trajectories a look takes as long as 16 updates."""
    setup = Setup(Hypergrid(side=32), batch=batch, updates=1_000)
    assert decide(setup)[0].evaluate_every == every
    assert decide(replace(setup, evaluate_every=7))[0].evaluate_every == 7
    assert decide(replace(setup, watch=()))[0].evaluate_every == 20
    assert decide(replace(setup, updates=50))[0].evaluate_every == (1 if batch > 1 else 50)


def test_insisting_on_a_list_fails_in_one_line():
    with pytest.raises(ValueError, match=r"more than max_states=100 states") as caught:
        ng.train(LARGE, enumerate=True, max_states=100)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": Table()}, "a table needs every state, .* use policies.Network"),
        (
            {"rule": Natural(), "policy": SMALL},
            "occupancy.Exact needs every state, .* use occupancy.Sampled",
        ),
        ({"backward": ng.policies.PathCount()}, "PathCount needs every state, .* policies.Uniform"),
        ({"watch": (Exact(),)}, "watch.Exact needs every state, .* use watch.Sampled"),
    ],
)
def test_what_needs_every_state_says_what_does_not(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        ng.train(GRID, enumerate=False, updates=1, **QUIET, **options)
    assert "\n" not in str(caught.value)


# The same run, with and without a list of states.

LONGER: list[AbstractSource] = [
    Fresh(),
    Replay(capacity=6),
    Recall(capacity=20),
    Perturbed(Replay(capacity=6)),
    Teacher(SMALL, replay=Replay("teacher", capacity=6)),
    ACE(SMALL),
]
SOURCES = [
    Mixed(Replay("loss", capacity=6)),
    *(pytest.param(source, marks=pytest.mark.slow) for source in LONGER),
]


@functools.cache
def both_ways(source: AbstractSource) -> tuple[ng.Run, ng.Run]:
    """A run with a list of states, and one without."""
    options = {"policy": SMALL, "source": source, "updates": 12, "evaluate_every": 12, "watch": ()}
    listed, not_listed = (
        ng.train(GRID, Adam(), enumerate=listed, **options, **QUIET) for listed in (True, False)
    )
    return listed, not_listed


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: type(s).__name__)
def test_a_run_does_not_depend_on_whether_states_are_listed(source):
    """States are numbers in the one, and grid cells in the other; nothing else differs."""
    runs = both_ways(source)
    assert [isinstance(run.setup.env, StateSpace) for run in runs] == [True, False]
    flows = [eqx.filter(run.state.flow, eqx.is_inexact_array) for run in runs]
    for listed, not_listed in zip(*map(jax.tree.leaves, flows), strict=True):
        np.testing.assert_allclose(not_listed, listed, rtol=2e-3, atol=2e-5)


def test_objects_in_a_buffer_are_the_same_objects():
    listed, not_listed = both_ways(SOURCES[0])
    numbers = np.asarray(listed.state.memory.objects[0])
    cells = np.asarray(not_listed.state.memory.objects.cell[0])
    np.testing.assert_array_equal(listed.space.states.cell[numbers], cells)
    np.testing.assert_array_equal(listed.state.memory.stamps, not_listed.state.memory.stamps)
    assert len({tuple(cell) for cell in cells.tolist()}) == 6


@pytest.mark.parametrize("env", [GRID, ng.envs.Triangles(nodes=4), BitSequences(8, 4, modes=3)])
def test_different_states_have_different_names(env):
    space = enumerate_states(env)
    names = np.asarray(names_of(jax.tree.map(jnp.asarray, space.states)))
    assert len(np.unique(names, axis=0)) == space.num_states
    # Neighbours differ in a bit or two, their names in half of all bits.
    bits = np.unpackbits(names.view(np.uint8), axis=1)
    assert abs(np.mean(bits[:-1] != bits[1:]) - 0.5) < 0.05
    numbers = names_of(jnp.arange(5))
    assert np.asarray(numbers).tolist() == [[n, 0] for n in range(5)]


# Networks, backward policies and flows.


@pytest.mark.parametrize("env", [GRID, ng.envs.Triangles(nodes=4)])
def test_a_network_reads_what_the_environment_shows(env):
    """The same function of a state, whether it is cached or computed."""
    space = enumerate_states(env)
    cached, computed = (SMALL(given, key=jax.random.key(3)) for given in (space, env))
    numbers = jnp.arange(space.num_states)
    both = jax.jit(lambda states: (jax.vmap(computed)(states), jax.vmap(cached)(numbers)))
    np.testing.assert_allclose(*both(space.states), rtol=1e-5, atol=1e-6)


def test_a_network_may_learn_the_backward_policy_and_the_flows():
    run = ng.train(
        Hypergrid(side=4, dims=3),
        Adam(1e-2),
        policy=Network(16, 1),
        backward=SMALL,
        flows=Network(4, 1),
        objective=DetailedBalance(),
        enumerate=False,
        updates=150,
        watch=(),
        **QUIET,
    )
    assert run.flow().states.rest[-1].weight.shape == (1, 4)
    before = run.setup.flow(0)
    assert np.any(run.flow().backward.rest[0].weight != before.backward.rest[0].weight)
    losses = run.metrics["train_loss"][1:, 0]
    assert losses[-1] < 0.2 * losses[0]


# What is watched.


WATCHED = {"policy": SMALL, "updates": 40, "evaluate_every": 20, "seeds": 2, **QUIET}
"""Of runs on bit sequences that share their programs."""


@pytest.fixture(scope="module")
def watched() -> ng.Run:
    return ng.train(BITS, source=Mixed(), **WATCHED)


def test_samples_tell_how_a_run_goes(watched):
    run = watched
    assert not isinstance(run.setup.env, StateSpace)
    expected = {"elbo", "log_z", "effective_share", "spearman", "pearson", "discovered"}
    assert expected | {"replayed_eubo", "top_diversity", "length"} <= set(run.metrics)
    assert np.isfinite(run.metrics["elbo"]).all()
    # An empty buffer has no bound to offer.
    assert np.isnan(run.metrics["replayed_eubo"][:, 0]).tolist() == [True, False, False]
    assert np.all(run.metrics["length"][-1] == BITS.max_steps)
    with pytest.raises(ValueError, match="not enumerated"):
        _ = run.laws


class Witness(AbstractSource):
    """Keeps every object that was drawn."""

    def init(self, env, flow, *, key):
        return jnp.zeros((2, 8, 6), jnp.int32)

    def draw(self, env, flow, proposal, num, memory, step, *, key):
        return ng.sampling.rollout(env, flow.forward, proposal, num, key=key)

    def learn(self, env, batch, memory, step):
        return memory.at[step].set(batch.paths.last.letters)


def test_modes_discovered_are_those_near_to_what_was_drawn():
    run = ng.train(BITS, Adam(), policy=SMALL, source=Witness(), updates=2, watch=(), **QUIET)
    words = np.asarray(run.state.memory[0]).reshape(-1, 6)
    bits = (words[:, :, None] >> np.arange(3, -1, -1) & 1).reshape(-1, 24)
    distance = (bits[:, None] != BITS.mode_bits()).sum(axis=2)
    found = (distance < 8).any(axis=0)
    assert 0 < found.sum() < 5
    np.testing.assert_array_equal(run.state.visited[0], found)


class Counter(AbstractWatcher):
    """A user's own watcher: one class."""

    every: int | None = 4

    def __call__(self, algorithm: Algorithm, states: TrainState) -> Line:
        return {"norm": np.abs(np.asarray(states.flow.log_z)).tolist()}

    def note(self, line: Line) -> str:
        return f"norm {line['norm'][0]:.2g}"


def test_watchers_look_when_they_are_due_and_all_of_them_in_the_end(tmp_path):
    lines: list[Line] = []
    run = ng.train(
        GRID,
        updates=10,
        seeds=2,
        evaluate_every=5,
        watch=(Exact(), Counter(), Snapshots(3)),
        out=tmp_path,
        log=lines.append,
        **QUIET,
    )
    assert run.steps.tolist() == [0, 3, 4, 5, 6, 8, 9, 10]
    assert lines == run.history
    assert np.isnan(run.metrics["norm"][:, 0]).tolist() == [
        False, True, False, True, True, False, True, False,
    ]  # fmt: skip
    assert np.isfinite(run.metrics["kl"]).all()
    kept = sorted(int(path.stem) for path in (tmp_path / "snapshots").iterdir())
    assert kept == [0, 3, 6, 9, 10]


def test_a_record_is_json_whatever_the_numbers(tmp_path):
    class Odd(AbstractWatcher):
        every: int | None = None

        def __call__(self, algorithm: Algorithm, states: TrainState) -> Line:
            return {"odd": [float("inf")], "even": [float("nan")]}

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    options = {"watch": (Odd(),), "updates": 2, "out": tmp_path, **QUIET}
    ng.train(GRID, **options)
    lines = (tmp_path / "record.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=refuse) for line in lines][-1]["odd"] == ["inf"]
    again = ng.train(GRID, resume=True, **options)
    assert np.isinf(again.metrics["odd"]).all()


# What is kept.


@pytest.mark.parametrize(
    "source",
    [Mixed(), pytest.param(Teacher(SMALL), marks=pytest.mark.slow)],
    ids=["mixed", "teacher"],
)
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path, source):
    """Objects of a space that nobody can list are part of the checkpoint."""
    whole = ng.train(BITS, source=source, **WATCHED)

    def stop(line: Line) -> None:
        if line["step"] == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ng.train(BITS, source=source, **WATCHED, out=tmp_path, log=stop)
    resumed = ng.run(load_setup(tmp_path), out=tmp_path, resume=True)
    arrays = [jax.tree.leaves(eqx.filter(run.state, eqx.is_array)) for run in (whole, resumed)]
    for one, other in zip(*arrays, strict=True):
        np.testing.assert_array_equal(one, other)
    for name, values in whole.metrics.items():
        np.testing.assert_array_equal(values, resumed.metrics[name])


def test_the_arrays_of_an_environment_are_kept_with_its_record(tmp_path):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(3, 8))
    for child in range(3):
        weights[child, np.arange(8) >> child & 1 == 1] = -np.inf
    env = ng.envs.Dags(weights)
    options = {"policy": SMALL, "updates": 2, "watch": (), "enumerate": False, **QUIET}
    first = ng.train(env, Adam(), **options, out=tmp_path)
    again = load_setup(tmp_path)
    np.testing.assert_array_equal(again.env.log_weights, weights)
    assert decide(again)[0].configuration() == first.configuration
    path = tmp_path / "arrays.npz"
    with np.load(path) as file:
        changed = {name: file[name] + 1 for name in file.files}
    np.savez(path, **changed)
    with pytest.raises(ng.NatgfnError, match="is not what the run was made from"):
        load_setup(tmp_path)
    path.unlink()
    with pytest.raises(ng.NatgfnError, match=r"the array .* is missing"):
        load_setup(tmp_path)


def test_samples_and_pictures(watched, tmp_path):
    drawn = watched.sample(7)
    assert drawn.letters.shape == (7, 6)
    assert np.asarray(jax.vmap(BITS.is_terminal)(drawn)).all()
    assert watched.plot(tmp_path / "run.png").stat().st_size > 10_000


def test_a_backward_policy_by_name_is_a_design():
    assert Setup(GRID).backward == Uniform()
    assert replace(Setup(GRID), backward=Network()).backward == Network()


def test_outside_of_a_checkout_experiments_are_one_clear_line(tmp_path: Path):
    from natgfn.cli.checkout import from_checkout

    with pytest.raises(ng.NatgfnError, match="natgfn reproduce needs the repository") as caught:
        from_checkout("paper", "reproduce", tmp_path)
    assert "\n" not in str(caught.value)
    assert from_checkout("paper", "reproduce").EXPERIMENTS
