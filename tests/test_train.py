"""Training: it learns, seeds are paired, steps compile once, bad steps are not taken."""

import json
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from oracles import explore
from scipy import stats

import natgfn as ng
from natgfn.algorithm import Algorithm, advance, stack_seeds
from natgfn.envs import Hypergrid
from natgfn.metrics import METRICS
from natgfn.objectives import TrajectoryBalance
from natgfn.optim import AbstractRule, Cosine, Euclidean, Linear, Natural, by_part
from natgfn.policies import Flow, Tabular, Uniform
from natgfn.training import Setup, lasting, paced
from natgfn.training.loop import note

GRID = ng.envs.Hypergrid(side=4)
OPTIONS = {"batch": 64, "evaluate_every": 20, "progress": False}


@pytest.fixture(scope="module")
def run():
    """The default rule, untouched, on three seeds."""
    return ng.train(GRID, updates=200, seeds=3, **OPTIONS)


def test_the_default_rule_learns_without_tuning(run):
    assert np.all(run.metrics["kl"][0] > 0.4)
    assert np.all(run.metrics["kl"][-1] < 1e-3)
    assert not run.metrics["rejected"].any()


@pytest.mark.slow
def test_the_exact_natural_gradient_learns_too():
    run = ng.train(GRID, Natural(), updates=200, seeds=3, **OPTIONS)
    assert np.all(run.metrics["kl"][-1] < 1e-3)


def test_seeds_do_not_depend_on_how_many_run_side_by_side(run):
    """Seed 1 of three equals seed 1 alone; seeds differ."""
    alone = ng.train(GRID, updates=40, seeds=1, seed=1, **OPTIONS)
    for name in ("kl", "tv", "loss", "train_loss"):
        np.testing.assert_allclose(
            alone.metrics[name][:, 0],
            run.metrics[name][:3, 1],
            rtol=1e-3,
            atol=1e-7,
            err_msg=name,
        )
    first = run.metrics["train_loss"][1]
    assert len(np.unique(first)) == 3


def test_a_run_is_evaluated_at_the_start_on_schedule_and_at_the_end(run):
    np.testing.assert_array_equal(run.steps, np.arange(0, 201, 20))
    assert set(run.metrics) == {*METRICS, "train_loss", "rejected", "discovered"}
    assert all(values.shape == (11, 3) for values in run.metrics.values())
    # Before the first update the training loss is the expected one.
    np.testing.assert_array_equal(run.metrics["train_loss"][0], run.metrics["loss"][0])
    assert [line["step"] for line in run.history] == run.steps.tolist()
    seconds = [line["seconds"] for line in run.history]
    assert seconds == sorted(seconds)


def test_a_run_reports_its_configuration_in_plain_json(run):
    assert run.configuration["env"] == {
        "name": "Hypergrid", "side": 4, "dims": 2, "floor": 1e-3, "outer_bound": True,
        "plateau": 0.5, "peak": 2.0,
    }  # fmt: skip
    assert run.configuration["rule"]["name"] == "SampleSpace"
    assert run.configuration["backward"] == {"name": "Uniform"}
    assert run.configuration["watch"] == [{"name": "Exact", "every": None}]
    assert run.configuration["enumerate"] is True
    assert run.configuration["reference"] is None
    assert (run.configuration["batch"], run.configuration["evaluate_every"]) == (64, 20)


def test_samples_follow_the_law_of_their_seed(run):
    assert run.laws.shape == (3, 16)
    np.testing.assert_allclose(run.laws.sum(1), 1.0, rtol=1e-12)
    sample = run.sample(4000, seed=2, key=5)
    assert np.asarray(sample.stopped).all()
    cells = np.ravel_multi_index(np.asarray(sample.cell).T, GRID.sides)
    terminals = np.ravel_multi_index(np.asarray(run.space.terminals.cell).T, GRID.sides)
    counts = np.bincount(cells, minlength=16)[terminals]
    expected = 4000 * run.laws[2]
    assert expected.min() > 1
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    other = run.sample(4000, seed=2, key=6)
    assert not np.array_equal(other.cell, sample.cell)


def test_the_flow_of_a_seed_is_its_slice_of_the_state(run):
    flow = run.flow(1)
    np.testing.assert_array_equal(flow.forward.logits, run.state.flow.forward.logits[1])
    assert flow.log_z.shape == ()
    assert float(flow.log_z) == pytest.approx(run.space.log_z, abs=1e-3)


# One step.

TRACES = []


def penalty(u):
    """Squares, except that a residual beyond 5 is an accident; counts how often it is traced."""
    TRACES.append(u)
    return u**2 * jnp.where(jnp.abs(u) > 5.0, jnp.nan, 1.0)


def small(rule):
    """An algorithm on a tiny grid, and its initial states: two seeds."""
    space = explore(oracles.WORLDS["grid"]).space
    algorithm = Algorithm(space, rule, TrajectoryBalance(penalty), batch=8)
    flow = Flow(Tabular.forward(space), Uniform().backward(space), jnp.array(0.0))
    return algorithm, stack_seeds(lambda s: algorithm.init(flow, s), [0, 1])


def test_a_step_is_traced_once_whatever_the_count_and_the_rates():
    algorithm, states = small(Euclidean())
    states, losses = advance(algorithm.with_traced_numbers(), states, jnp.array(3))
    before, logits = len(TRACES), np.asarray(states.flow.forward.logits)
    assert before > 0
    np.testing.assert_array_equal(states.step, 3)
    assert np.isfinite(losses).all()
    faster = eqx.tree_at(lambda a: a.rule, algorithm, Euclidean(0.2, 0.3, 0.4))
    states, _ = advance(faster.with_traced_numbers(), states, jnp.array(5))
    np.testing.assert_array_equal(states.step, 8)
    assert len(TRACES) == before
    assert np.abs(states.flow.forward.logits - logits).max() > 0


def test_a_step_is_traced_once_however_long_the_schedules():
    algorithm, states = small(Euclidean(Cosine(0.1, 10)))
    states, _ = advance(algorithm.with_traced_numbers(), states, jnp.array(1))
    before = len(TRACES)
    longer = eqx.tree_at(lambda a: a.rule, algorithm, Euclidean(Cosine(0.1, 500)))
    advance(longer.with_traced_numbers(), states, jnp.array(1))
    assert len(TRACES) == before


def test_a_run_without_time_stops_and_goes_on_as_if_it_had_not(tmp_path):
    setup = Setup(GRID, Euclidean(Cosine(0.1, 4)), batch=4, updates=4, evaluate_every=1)
    whole = ng.training.run(setup, progress=False)
    cut = ng.training.run(setup, out=tmp_path, seconds=1e-9, progress=False)
    assert int(cut.state.step[0]) == 1
    rest = ng.training.run(setup, out=tmp_path, resume=True, seconds=600.0, progress=False)
    assert rest.steps.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(rest.flow(0).forward.logits, whole.flow(0).forward.logits)


def test_a_paced_run_has_as_many_updates_as_there_is_time_for():
    rule = Euclidean(Cosine(0.1, 4), log_z_rate=Linear(1.0, 4))
    setup = Setup(GRID, rule, batch=4, updates=4)
    longer = paced(setup, 100.0)
    assert longer.updates > 100
    assert longer.rule == Euclidean(
        Cosine(0.1, longer.updates), log_z_rate=Linear(1.0, longer.updates)
    )
    assert longer == lasting(setup, longer.updates)
    assert paced(setup, 0.0).updates == 1


def test_traced_numbers_are_the_same_numbers():
    algorithm, _ = small(Euclidean(0.2, 0.3, 0.4))
    traced = algorithm.with_traced_numbers()
    assert not any(isinstance(x, float) for x in jax.tree.leaves(traced.rule))
    numbers = [x for x in jax.tree.leaves(traced.rule) if isinstance(x, jax.Array)]
    np.testing.assert_allclose(numbers, [0.2, 0.3, 0.4], rtol=1e-6)
    # Those of the environment are what it is made of, and stay.
    assert traced.env.env == algorithm.env.env
    assert traced.batch == 8


def test_the_reported_loss_is_the_mean_over_the_steps():
    """Of a flow that does not move: the mean of three batches, each reported by itself."""
    algorithm, states = small(Euclidean(0.0, 0.0, 0.0))
    algorithm = algorithm.with_traced_numbers()
    copy = jax.tree.map(lambda x: x.copy() if eqx.is_array(x) else x, states)
    _, together = advance(algorithm, copy, jnp.array(3))
    single = []
    for _ in range(3):
        states, losses = advance(algorithm, states, jnp.array(1))
        single.append(np.asarray(losses))
    np.testing.assert_allclose(together, np.mean(single, axis=0), rtol=1e-6)
    assert np.all(np.ptp(single, axis=0) > 1e-3)


def test_only_the_steps_that_fail_are_lost():
    """A seed in trouble stays where it is, and the one beside it goes on."""
    algorithm, states = small(Euclidean(0.1, 0.1, 0.1))
    states = eqx.tree_at(lambda s: s.flow.log_z, states, states.flow.log_z.at[0].set(-20.0))
    states, _ = advance(algorithm.with_traced_numbers(), states, jnp.array(4))
    assert np.asarray(states.rejected).tolist() == [4, 0]
    assert float(states.flow.log_z[0]) == -20.0
    assert not np.any(states.flow.forward.logits[0])
    assert float(states.flow.log_z[1]) != 0.0
    assert np.any(states.flow.forward.logits[1])


class Momentum(AbstractRule):
    """A rule that has a state to spoil."""

    def transform(self):
        return by_part(*[optax.sgd(0.1, momentum=0.9)] * 4)

    def context(self, env, flow, batch):
        return {}


@pytest.fixture(scope="module")
def broken():
    """A penalty that is not a number."""
    objective = TrajectoryBalance(lambda u: u * jnp.nan)
    env = ng.envs.Hypergrid(side=2)
    options = {"updates": 20, "seeds": 2, "batch": 4, "evaluate_every": 7, "progress": False}
    return ng.train(env, Momentum(), objective=objective, **options)


def test_steps_that_are_not_finite_are_rejected_counted_and_reported(broken):
    np.testing.assert_array_equal(broken.state.rejected, 20)
    np.testing.assert_array_equal(broken.metrics["rejected"], [[0, 0], [7, 7], [14, 14], [20, 20]])
    watchers = list(broken.setup.watch)
    assert "40 steps rejected" in note(watchers, broken.history[-1])
    assert "rejected" not in note(watchers, broken.history[0])
    assert np.isnan(broken.metrics["train_loss"][1:]).all()


def test_a_rejected_step_changes_neither_parameters_nor_the_optimiser(broken):
    assert not np.any(broken.state.flow.forward.logits)
    assert not np.any(broken.state.flow.log_z)
    momentum = jax.tree.leaves(broken.state.optimiser)
    assert len(momentum) == 2
    assert not any(np.any(leaf) for leaf in momentum)
    np.testing.assert_array_equal(broken.state.step, 20)
    assert np.ptp(broken.metrics["kl"]) == 0


def test_the_last_chunk_is_as_short_as_it_must_be(broken):
    np.testing.assert_array_equal(broken.steps, [0, 7, 14, 20])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"updates": 0}, "updates must be at least 1, got 0"),
        ({"seeds": -1}, "seeds must be at least 1, got -1"),
        ({"evaluate_every": -3}, "evaluate_every must be at least 1, got -3"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1, got 0"),
    ],
)
def test_counts_must_be_positive(options, message):
    with pytest.raises(ValueError, match=message):
        ng.train(GRID, **options)


class Impossible(Hypergrid):
    """A grid on which one cell is worth nothing."""

    def log_reward(self, state):
        return jnp.where(jnp.all(state.cell == 1), -jnp.inf, 0.0)


def test_training_refuses_objects_of_reward_zero():
    """Their residual is infinite: every step that meets one would be rejected."""
    with pytest.raises(ValueError, match="1 objects that can be reached have reward zero"):
        ng.train(Impossible(side=2), updates=1, progress=False)


def test_whole_numbers_are_asked_for_where_annotations_are_not_checked(tmp_path):
    """In a process of its own: in this one, types are checked before anything else."""
    code = f"""
import numpy as np, natgfn as ng
def refused(make, *words):
    try:
        make()
    except ValueError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(words)
refused(lambda: ng.envs.Hypergrid(side=2.5), "side must be a whole number", "2.5")
refused(lambda: ng.envs.LazyWalk(steps=-1), "steps must be at least 1")
env = ng.envs.Hypergrid(side=3)
refused(lambda: ng.Setup(env, updates=2.5), "updates must be a whole number")
refused(lambda: ng.Setup(env, seed=2**40), "seed must be at most 4,294,967,295")
refused(lambda: ng.Setup(env, seed=-1), "seed must be at least 0")
run = ng.train(env, updates=np.int64(1), batch=np.int32(2), out={str(tmp_path)!r}, progress=False)
refused(lambda: run.sample(3, seed=7), "seed must be from 0 to 0", "7")
refused(lambda: run.sample(3, seed=-1), "seed must be from 0 to 0")
refused(lambda: run.sample(-3), "num must be at least 1")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    header = json.loads((tmp_path / "record.jsonl").read_text().splitlines()[0])
    assert header["configuration"]["updates"] == 1
