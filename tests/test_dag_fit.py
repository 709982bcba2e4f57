"""Trained samplers of graphs: the posterior they end in, their replay, and `natgfn dag fit`."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from dag_oracles import law, parent_bits, random_weights
from test_cli import assert_one_line, natgfn

from natgfn.algorithm import Algorithm, advance, stack_seeds
from natgfn.dag import (
    BDeu,
    BGe,
    Prior,
    Transformer,
    exact_posterior,
    fit,
    fitting,
    graphs,
    load,
    log_weights,
    setup_of,
)
from natgfn.dag.sampler import Draws, SampledPosterior, draw
from natgfn.dag.scores import score_for
from natgfn.envs import Dags
from natgfn.optim import Adam, SampleSpace
from natgfn.policies import Flow, Network, Uniform, UniformPolicy
from natgfn.sampling import UniformMixture, rollout
from natgfn.sources import Recall
from natgfn.training import RECORD, Record, lasting
from paper.experiments import dag_synthetic


def a_table(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, rows))
    c = a + b + 0.5 * rng.normal(size=rows)
    return pd.DataFrame({"a": a, "b": b, "c": c, "d": c + rng.normal(size=rows)})


@pytest.fixture(scope="module")
def fitted() -> SampledPosterior:
    return fit(a_table(), forbid=[("d", "a")], updates=300, batch=32, progress=False)


@pytest.mark.slow
@pytest.mark.trains
def test_a_short_training_ends_near_the_posterior(fitted: SampledPosterior):
    exact = exact_posterior(load(a_table()), prior=Prior(forbid=[("d", "a")]))
    errors = fitted.errors(exact)
    assert errors["largest_error_of_a_marginal"] < 0.04
    assert errors["largest_error_of_a_corrected_marginal"] < 0.03
    assert abs(errors["log_z_error"]) < 0.02
    assert abs(errors["expected_edges_error"]) < 0.1
    quality = fitted.quality()
    assert quality["effective_sample_share"] > 0.2
    assert quality["held_out_residual_median_size"] < 0.1
    assert fitted.edge_marginals.loc["d", "a"] == 0


@pytest.mark.slow
def test_log_z_goes_as_far_as_a_poor_guide_asks():
    """Much data and strong effects: the first log-weights are twenty nats too low."""
    data = load(dag_synthetic.draw_data(8, 1, rows=20_000)[1])
    env = Dags(log_weights(data, BGe(), Prior()))
    setup = setup_of(env, Network(8, 1), None, updates=100, batch=16, seed=0)
    first = draw(env, setup.flow(0), 500, seed=0).log_weights
    assert setup.log_z == pytest.approx(first.mean(), rel=1e-6)
    assert first.std() > 8
    rates = setup.rule.log_z_rate
    assert (rates(0), rates(100)) == pytest.approx((first.std() / 40, 0.02 * first.std() / 40))


@pytest.mark.slow
@pytest.mark.trains
def test_samples_are_acyclic_repeatable_and_in_any_number(fitted: SampledPosterior):
    drawn = fitted.sample(501, seed=4)
    assert drawn.shape == (501, 4, 4)
    assert graphs.is_acyclic(drawn).all()
    np.testing.assert_array_equal(drawn, fitted.sample(501, seed=4))
    assert (drawn != fitted.sample(501, seed=5)).any()


@pytest.mark.slow
@pytest.mark.trains
def test_the_top_graphs_are_those_of_the_exact_posterior(fitted: SampledPosterior):
    exact = exact_posterior(load(a_table()), prior=Prior(forbid=[("d", "a")]))
    _, expected = exact.top(5)
    found, probabilities = fitted.top(5)
    np.testing.assert_allclose(probabilities, expected, rtol=0.03)
    bits = parent_bits(found.astype(int))
    log_rewards = fitted.target.log_weights[np.arange(4), bits].sum(axis=1)
    np.testing.assert_allclose(log_rewards, exact.log_z + np.log(expected), atol=1e-8)


@pytest.mark.slow
@pytest.mark.trains
def test_a_fit_in_minutes_goes_on_with_more_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On a machine that makes sixty updates in whatever time it is given."""
    monkeypatch.setattr(fitting, "paced", lambda setup, _: lasting(setup, 60))
    options = {"minutes": 1e3, "batch": 32, "samples": 2_000, "out": tmp_path, "progress": False}
    record = Record(tmp_path / RECORD)
    first = fit(a_table(), **options)
    before, lines = record.read()
    assert lines[-1]["step"] == before["configuration"]["updates"] == 60
    second = fit(a_table(), resume=True, **options)
    after, longer = record.read()
    assert longer[: len(lines)] == lines
    assert longer[-1]["step"] == after["configuration"]["updates"] == 120
    assert after["configuration"]["rule"]["rate"]["steps"] == 120  # half of it is over, not all
    apart = [x.quality()["held_out_residual_deviation"] for x in (first, second)]
    assert apart[1] < apart[0]


def test_weights_correct_a_sampler_that_is_wrong():
    table = random_weights(4, 1.0, 8)
    env = Dags(table)
    flow = Flow(UniformPolicy(env.num_actions), Uniform().backward(env), jnp.array(0.0))
    draws = draw(env, flow, 20_000, seed=0)
    found = SampledPosterior(tuple("abcd"), env, (flow,), draws)
    dags, probabilities, log_z = law(table)
    exact = np.einsum("n,nij->ij", probabilities, dags)
    assert np.abs(found.edge_marginals.to_numpy() - exact).max() > 0.1
    assert np.abs(found.corrected_marginals.to_numpy() - exact).max() < 0.04
    assert found.log_z == pytest.approx(log_z, abs=0.05)
    assert found.quality()["effective_sample_share"] < 0.7


def test_effective_samples_of_known_weights():
    some = Draws(np.zeros((3, 2, 2), np.int8), np.log([1.0, 1.0, 2.0]), np.zeros(3), np.zeros(3))
    assert some.effective_samples == pytest.approx(16 / 6)
    assert some.log_z == pytest.approx(np.log(4 / 3))


def algorithm_for(env: Dags, **options) -> Algorithm:
    return Algorithm(env=env, proposal=UniformMixture(0.2), **options).with_traced_numbers()


def start(algorithm: Algorithm, forward):
    flow = Flow(forward, Uniform().backward(algorithm.env), jnp.array(0.0))
    return stack_seeds(lambda seed: algorithm.init(flow, seed), [0])


def test_recall_keeps_the_newest_and_draws_each_once():
    env = Dags(random_weights(3, 1.0, 0))
    source, policy = Recall(capacity=5), UniformPolicy(env.num_actions)
    flow = Flow(policy, policy, jnp.array(0.0))
    memory = source.init(env, flow, key=jax.random.key(0))
    kept = []

    @jax.jit
    def gather(memory, key):
        later = source.gather(env, flow, UniformMixture(1.0), 3, memory, key=key)
        return later, rollout(env, policy, UniformMixture(1.0), 3, key=key)

    for round in range(3):
        memory, new = gather(memory, jax.random.key(round))
        kept = (kept + np.asarray(new.actions).T.tolist())[-5:]
    assert sorted(np.asarray(memory.actions).tolist()) == sorted(kept)
    args = (env, flow, UniformMixture(1.0), 5, memory, jnp.array(0))
    drawn = jax.jit(lambda key: source.draw(*args, key=key))(jax.random.key(9))
    assert sorted(np.asarray(drawn.actions).T.tolist()) == sorted(kept)
    assert np.asarray(drawn.last.stopped).all()
    with pytest.raises(ValueError, match="at least the batch, 6"):
        source.gather(env, flow, UniformMixture(1.0), 6, memory, key=jax.random.key(0))


@pytest.mark.slow
@pytest.mark.trains
@pytest.mark.parametrize("rule", [Adam(1e-2), SampleSpace.network()])
def test_any_rule_trains_without_an_enumeration(rule):
    env = Dags(random_weights(4, 1.0, 2))
    algorithm = algorithm_for(env, rule=rule, source=Recall(capacity=64), batch=32)
    states = start(algorithm, Network(16, 1)(env, key=jax.random.key(0)))
    states, first = advance(algorithm, states, jnp.array(10))
    states, _ = advance(algorithm, states, jnp.array(150))
    states, last = advance(algorithm, states, jnp.array(10))
    assert float(last[0]) < 0.25 * float(first[0])
    assert states.visited is None
    assert int(states.rejected[0]) == 0


@pytest.mark.slow
@pytest.mark.trains
def test_the_transformer_trains():
    env = Dags(random_weights(3, 1.0, 2))
    algorithm = algorithm_for(env, rule=Adam(3e-3), source=Recall(capacity=64), batch=16)
    design = Transformer(width=8, depth=1, heads=2, feed=8)
    states = start(algorithm, design(env, key=jax.random.key(0)))
    states, first = advance(algorithm, states, jnp.array(10))
    states, _ = advance(algorithm, states, jnp.array(100))
    states, last = advance(algorithm, states, jnp.array(10))
    assert float(last[0]) < 0.25 * float(first[0])


def test_scores_by_name():
    data = load(a_table())
    assert isinstance(score_for(data, None), BGe)
    assert isinstance(score_for(data, "bdeu"), BDeu)
    with pytest.raises(ValueError, match="'bge', 'bdeu'"):
        score_for(data, "aic")


@pytest.mark.slow
@pytest.mark.trains
def test_everything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    a_table().to_csv("data.csv", index=False)
    result = natgfn("dag", "fit", "data.csv", "--out", "run", "--updates", "60", "--require",
                    "a->c", "--temperature", "0.5", "--seed", "3")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "60 rows, 4 variables" in result.output
    summary = json.loads(Path("run/summary.json").read_text())
    exact = exact_posterior("data.csv", prior=Prior(require=[("a", "c")]), temperature=0.5)
    edges = pd.read_csv("run/edge_marginals.csv", index_col=0).to_numpy()
    error = np.abs(edges - exact.edge_marginals.to_numpy()).max()
    distance = summary["distance_to_exact"]
    assert distance["largest_error_of_a_marginal"] == pytest.approx(error, abs=1e-12)
    assert f"further than {error:.2g} from" in result.output
    assert summary["options"]["updates"] == 60
    assert summary["options"]["seed"] == 3
    assert summary["log_z_relative_to_empty"] - exact.log_z == pytest.approx(
        distance["log_z_error"], abs=1e-9
    )
    with np.load("run/samples.npz", allow_pickle=False) as samples:
        assert samples["names"].tolist() == ["a", "b", "c", "d"]
        np.testing.assert_allclose(samples["graphs"].mean(axis=0), edges, atol=1e-12)
        assert samples["graphs"][:, 0, 2].all()
    for name in ("path_marginals.csv", "markov_blankets.csv", "posterior.png"):
        assert (Path("run") / name).exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("missing.csv", ("missing.csv", "No such file")),
        ("data.csv --updates 0", ("updates must be at least 1", "got 0")),
        ("data.csv --require a->b --require b->a", ("must not form a cycle",)),
        ("data.csv --temperature -1", ("temperature must be positive",)),
        ("data.csv --out data.csv", ("data.csv", "exists")),
    ],
)
def test_bad_input_is_one_line(
    arguments: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    a_table().to_csv("data.csv", index=False)
    assert_one_line(natgfn("dag", "fit", *arguments.split()), 2, "error: ", *words)
