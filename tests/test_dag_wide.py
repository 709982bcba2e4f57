"""Graphs of many variables: computed weights, a guide of few candidates, padding skipped."""

import json
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pandas as pd
import pytest
from dag_oracles import random_weights
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import float64
from test_cli import assert_one_line, natgfn
from test_dag_policy import some_states
from test_dag_scores import continuous

from natgfn import NatgfnError
from natgfn.check import check_environment
from natgfn.dag import (
    BDeu,
    BGe,
    Data,
    Prior,
    exact_posterior,
    load,
    log_weights,
    posterior_of,
    setup_of,
)
from natgfn.dag.guide import Guide
from natgfn.dag.target import environment, gaussian_dags
from natgfn.envs import Dags
from natgfn.envs.gaussian_dags import GaussianDags
from natgfn.policies import Network, UniformPolicy
from natgfn.sampling import OnPolicy, rollout
from natgfn.statespace import enumerate_states
from natgfn.training import run

NAMES = tuple(f"X{i}" for i in range(5))


def a_target(seed: int, rows: int = 40) -> tuple[Data, BGe, Prior, float]:
    """Random data, scores, priors and constraints."""
    rng, size = np.random.default_rng(seed), len(NAMES)
    root = rng.normal(size=(size, size))
    scale = [None, 0.7, root @ root.T + np.eye(size)][seed % 3]
    score = BGe(
        mean=rng.normal(size=size),
        mean_weight=2.0,
        freedom=size + 1 + 2 * rng.random(),
        scale=scale,
    )
    pairs = [tuple(rng.permutation(NAMES)[:2].tolist()) for _ in range(3)]
    prior = Prior(
        edge_penalty=float(rng.normal()),
        edge_probability=0.3,
        max_parents=[None, 2, 3][seed % 5 % 3],
        forbid=pairs[:1],
        require=[pair for pair in pairs[1:2] if pair != pairs[0]],
        log_odds={pairs[2]: 0.8},
    )
    return continuous(rows, size, seed), score, prior, float(rng.uniform(0.1, 1.5))


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_computed_weights_are_those_of_the_table(seed: int):
    case = a_target(seed)
    table, env = log_weights(*case), gaussian_dags(*case)
    sets = np.arange(2 ** len(NAMES))[:, None] >> np.arange(len(NAMES)) & 1 == 1
    for child, row in enumerate(table):
        np.testing.assert_allclose(env.local(child, sets), row, atol=1e-8)
    assert env.required == Dags(table).required


def rewards_of(case, count: int = 50) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of graphs drawn at random: looked up, computed by NumPy, and in JAX."""
    env, tabular = gaussian_dags(*case), Dags(log_weights(*case))
    paths = rollout(env, UniformPolicy(env.num_actions), OnPolicy(), count, key=jax.random.key(0))
    graphs = np.asarray(paths.last.edges)
    in_jax = eqx.filter_jit(lambda env, ends: jax.vmap(env.log_reward)(ends))(env, paths.last)
    return tabular.log_rewards(graphs), env.log_rewards(graphs), np.asarray(in_jax)


@float64
@pytest.mark.parametrize("seed", [0, 2])
def test_rewards_in_float64(seed: int):
    table, computed, in_jax = rewards_of(a_target(seed))
    np.testing.assert_allclose(computed, table, atol=1e-8)
    np.testing.assert_allclose(in_jax, table, atol=1e-8)


@pytest.mark.slow
def test_rewards_in_float32_are_good_to_a_thousandth():
    data = load(continuous(1000, 12, 1).values)
    left = 1 / np.linalg.inv(np.corrcoef(data.values.T)).diagonal()  # the share unexplained
    assert left.min() < 0.05
    table, _, in_jax = rewards_of((data, BGe(), Prior(), 1.0))
    assert np.ptp(table) > 1000
    assert np.abs(in_jax - table).max() < 3e-3


def test_constraints_leave_the_graphs_of_the_table():
    score, prior = BGe(), Prior(max_parents=2, require=[("X0", "X2")], forbid=[("X3", "X1")])
    data = continuous(30, 4)
    env = gaussian_dags(data, score, prior, 1.0)
    assert env.max_steps == 5
    found = enumerate_states(env)
    expected = enumerate_states(Dags(log_weights(data, score, prior)))
    assert {x.tobytes() for x in np.asarray(found.terminals.edges)} == {
        x.tobytes() for x in np.asarray(expected.terminals.edges)
    }
    np.testing.assert_allclose(np.sort(found.log_rewards), np.sort(expected.log_rewards), atol=1e-4)
    findings = check_environment(env)
    assert len(findings) == 11
    assert all(finding.ok is not False for finding in findings)


@pytest.mark.slow
def test_a_guide_does_not_care_where_weights_come_from():
    case = a_target(3)
    tabular, computed = Dags(log_weights(*case)), gaussian_dags(*case)
    states = some_states(tabular)
    for candidates in (2, 4, None):
        one, other = (Guide.of(env, candidates) for env in (tabular, computed))
        np.testing.assert_array_equal(one.power, other.power)
        np.testing.assert_allclose(one.many(states), other.many(states), atol=1e-4)


def test_what_is_no_candidate_joins_the_best_set_that_has_room():
    table = random_weights(5, 2.0, 5)
    table[:, np.bitwise_count(np.arange(32)) > 2] = -np.inf
    guide, sets = Guide.of(Dags(table), 2), np.arange(32)
    for child in range(5):
        inside = int((guide.power[:, child] > 0) @ 2 ** np.arange(5))
        among = sets[(sets & ~inside == 0) & (np.bitwise_count(sets) < 2)]
        best = among[np.argmax(table[child, among])]
        outside = (guide.power[:, child] == 0) & (np.arange(5) != child)
        expected = (table[child, best | 1 << np.arange(5)] - table[child, best])[outside]
        found = guide.gains.view(np.float32)[outside, child]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_candidates_are_the_markov_blanket():
    """0 -> 1 -> 2 <- 3, and four variables that have nothing to do with them."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(400, 8))
    values[:, 1] += values[:, 0]
    values[:, 2] += values[:, 1] + values[:, 3]
    env = gaussian_dags(load(values), BGe(), Prior(), 1.0)
    guide = Guide.of(env, 3)
    assert np.flatnonzero(guide.power[:, 1]).tolist() == [0, 2, 3]
    tight = gaussian_dags(load(values), BGe(), Prior(max_parents=1), 1.0)
    assert {0, 2} < set(np.flatnonzero(Guide.of(tight, 3).power[:, 1]).tolist())


@pytest.mark.slow
@pytest.mark.trains
def test_a_short_training_on_computed_rewards():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, 5))
    values[:, 2] += values[:, 0] + values[:, 1]
    values[:, 3:] += values[:, 2:3]
    data = load(values)
    env = environment(data, BGe(), Prior(max_parents=3), 1.0, tabulated=4)
    assert isinstance(env, GaussianDags)
    setup = setup_of(env, Network(128, 2), None, updates=300, batch=32, seed=0)
    found = posterior_of(run(setup, progress=False), data.names, 10_000)
    errors = found.errors(exact_posterior(data, prior=Prior(max_parents=3)))
    assert errors["largest_error_of_a_corrected_marginal"] < 0.04
    assert abs(errors["log_z_error"]) < 0.05


def write(count: int, rows: int = 60) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(rows, count))
    values[:, 1:] += values[:, :-1]
    pd.DataFrame(values).add_prefix("x").to_csv("data.csv", index=False)


@pytest.mark.slow
def test_seventeen_variables_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write(17)
    result = natgfn("dag", "fit", "data.csv", "--out", "run", "--updates", "3", "--samples", "100",
                    "--require", "x0->x1", "--forbid", "x2->x1", "--max-parents", "3")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "17 variables; local weights are computed for each graph" in result.output
    assert "GB of memory" in result.output
    assert "is the only judge" in result.output
    summary = json.loads(Path("run/summary.json").read_text())
    assert "distance_to_exact" not in summary
    assert 0 < summary["quality"]["effective_sample_share"] <= 1
    edges = pd.read_csv("run/edge_marginals.csv", index_col=0)
    assert edges.loc["x0", "x1"] == 1
    assert edges.loc["x2", "x1"] == 0
    with np.load("run/samples.npz", allow_pickle=False) as samples:
        assert samples["graphs"].shape == (100, 17, 17)
        assert samples["graphs"].sum(axis=1).max() <= 3
    for name in ("path_marginals.csv", "markov_blankets.csv", "posterior.png"):
        assert (Path("run") / name).exists()


def test_discrete_data_need_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).integers(0, 2, (40, 17))
    pd.DataFrame(values).add_prefix("x").to_csv("data.csv", index=False)
    result = natgfn("dag", "fit", "data.csv", "--discrete")
    assert_one_line(result, 2, "error: ", "BDeu", "17 variables", "use at most 16")
    levels = Data(tuple(f"x{i}" for i in range(17)), values, discrete=True)
    with pytest.raises(NatgfnError, match="use at most 16"):
        environment(levels, BDeu(), Prior(), 1.0)
