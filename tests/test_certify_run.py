"""Certificates of runs: the numbers against dense matrices, and what they must not touch."""

import json
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from oracles import float64
from typer.testing import CliRunner

import natgfn as ng
from natgfn.algorithm import Algorithm
from natgfn.certify import (
    Effort,
    certificate,
    fisher_root,
    nystrom,
    relative_error_estimate,
    surrogate,
)
from natgfn.certify.policy import _CERTIFY, exact_gradient, layer_coupling, trajectory_metric
from natgfn.cli import app
from natgfn.fisher import Fisher, Occupancy
from natgfn.occupancy import Exact, Factorised, Sampled, SampledScores, Trajectories
from natgfn.optim import Adam, Euclidean, Natural, SampleSpace
from natgfn.policies import Flow, Network, Tabular, Uniform
from natgfn.sampling import UniformMixture
from natgfn.statespace import enumerate_states
from natgfn.training import loop, recertify
from natgfn.watch import CERTIFICATE

SPACE = enumerate_states(ng.envs.Hypergrid(side=4))
TREE = enumerate_states(ng.envs.Triangles(nodes=3))
KEY = jax.random.key(5)


def setting(rule, space=SPACE, design=None, **options):
    """An algorithm at a random policy."""
    algorithm = Algorithm(env=space, rule=rule, batch=16, **options).with_traced_numbers()
    if design is None:
        shape = (space.num_inner, space.num_actions)
        forward = Tabular(0.5 * jax.random.normal(jax.random.key(1), shape))
    else:
        forward = jax.tree.map(
            lambda x: 2 * x.astype(float) if eqx.is_inexact_array(x) else x,
            design(space, key=jax.random.key(1)),
        )
    log_z = jnp.ones(())
    return algorithm, algorithm.init(Flow(forward, Uniform().backward(space), log_z), 0)


def dense(algorithm, state):
    """Exact Fisher, surrogate, exact gradient and the batch's, as matrices and vectors."""
    flow = state.flow
    batch_key, _, _ = jax.random.split(KEY, 3)
    occupancy, damping = algorithm.rule.metric()

    @jax.jit
    def both():
        batch = algorithm.draw(flow, batch_key)
        fisher = Fisher(algorithm.env, flow.forward, Exact()(algorithm.env, flow.forward))
        if isinstance(occupancy, Trajectories):
            flat, unravel = ravel_pytree(eqx.filter(flow.forward, eqx.is_inexact_array))
            rows = jax.jacrev(lambda x: log_laws(algorithm, flow, batch, unravel(x)))(flat)
            other = rows.T @ (batch.omega[:, None] * rows) / batch.size
        else:
            seen = None if isinstance(occupancy, Exact) else batch
            other = Fisher(
                algorithm.env, flow.forward, occupancy(algorithm.env, flow.forward, seen)
            ).as_matrix()
        h = exact_gradient(algorithm, flow, fisher)
        return fisher.as_matrix(), other, h, ravel_pytree(batch.gradient().forward)[0]

    return (*map(np.asarray, both()), float(damping))


def log_laws(algorithm, flow, batch, forward):
    """Log-probabilities of the batch's trajectories under other parameters."""
    policy = eqx.combine(forward, flow.forward)
    return ng.sampling.log_probs(
        algorithm.env, eqx.tree_at(lambda f: f.forward, flow, policy), batch.paths
    ).forward


def norm(matrix, x):
    return np.sqrt(x @ matrix @ x)


TABLE_RULES = {
    "sampled": Natural(Sampled(), damping=1e-2, rate=0.1),
    "scores": Natural(SampledScores(), damping=1e-2, rate=0.1),
    "factorised": Natural(Factorised(), damping=1e-2, rate=0.1),
    "exact": Natural(Exact(), damping=1e-2, rate=0.1),
    "sample space": SampleSpace(damping=1e-2),
    "none": Euclidean(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE_RULES)
@float64
def test_numbers_of_a_table_are_those_of_dense_matrices(name):
    algorithm, state = setting(TABLE_RULES[name])
    found = jax.jit(
        lambda: certificate(algorithm, state, key=KEY, effort=Effort(rank=8, iterations=40))
    )()
    exact, other, h, noisy, damping = dense(algorithm, state)
    rho = surrogate.relative_error(jnp.asarray(exact), jnp.asarray(other), damping)
    assert float(found["rho"]) == pytest.approx(float(rho), rel=5e-3, abs=1e-12)
    if name != "sample space":
        assert float(found["rho"]) == pytest.approx(float(rho), rel=1e-8, abs=1e-12)
        gamma = surrogate.coupling(jnp.asarray(exact), jnp.asarray(other), damping)
        assert float(found["gamma"]) == pytest.approx(float(gamma), rel=1e-8, abs=1e-12)
    eye = damping * np.eye(len(h))
    v, other_v = np.linalg.solve(exact + eye, h), np.linalg.solve(other + eye, h)
    length = norm(exact + eye, v)
    error = norm(exact + eye, other_v - v) / length
    assert float(found["direction_error"]) == pytest.approx(error, rel=1e-7, abs=1e-10)
    change = noisy - h
    size = np.sqrt(change @ np.linalg.solve(exact + eye, change)) / length
    assert float(found["gradient_error"]) == pytest.approx(size, rel=1e-7)
    outside = np.linalg.norm(damping * other_v) / np.linalg.norm(h)
    assert float(found["gradient_outside"]) == pytest.approx(outside, rel=1e-6)
    eigenvalues = np.linalg.eigvalsh(exact)
    rank = (eigenvalues / (eigenvalues + damping)).sum()
    assert float(found["effective_rank"]) == pytest.approx(rank, rel=1e-9)
    assert float(found["curvature_floor"]) <= eigenvalues[eigenvalues > 1e-10].min()
    limit = float(found["direction_limit"])
    assert error <= limit * (1 + 1e-9) + 1e-12
    assert (limit == np.inf) == (float(found["rho"] + found["rho_error"]) >= 1)


@float64
def test_the_exact_rule_is_certified_exact_on_a_tree_too():
    """There the rule works its occupancy out only where a batch goes."""
    algorithm, state = setting(Natural(Exact(), rate=0.1), TREE)
    found = jax.jit(lambda: certificate(algorithm, state, key=KEY))()
    assert float(found["rho"]) == 0
    assert float(found["direction_error"]) == 0


@float64
def test_the_metric_of_trajectories_is_their_outer_product():
    algorithm, state = setting(SampleSpace(damping=1e-2))
    _, other, h, _, damping = dense(algorithm, state)

    @jax.jit
    def products():
        batch = algorithm.draw(state.flow, jax.random.split(KEY, 3)[0])
        fisher = Fisher(SPACE, state.flow.forward, Exact()(SPACE, state.flow.forward))
        metric = trajectory_metric(fisher, batch, damping)
        return jax.vmap(metric.root.mv)(jnp.eye(len(h))), metric.solve(jnp.asarray(h))

    matrix, solved = products()
    np.testing.assert_allclose(matrix, other, atol=1e-12)
    expected = np.linalg.solve(other + damping * np.eye(len(h)), h)
    np.testing.assert_allclose(solved, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@float64
def test_numbers_of_a_network_are_those_of_dense_matrices():
    algorithm, state = setting(Adam(), design=Network(width=6, depth=2))
    momentum = jax.tree.map(jnp.ones_like, state.optimiser["forward"][0].mu)
    state = eqx.tree_at(lambda s: s.optimiser["forward"][0].mu, state, momentum)
    found = jax.jit(lambda: certificate(algorithm, state, key=KEY))()
    exact, other, h, noisy, damping = dense(algorithm, state)
    rho = surrogate.relative_error(jnp.asarray(exact), jnp.asarray(other), damping)
    assert float(found["rho"]) == pytest.approx(float(rho), rel=0.01)
    eye = damping * np.eye(len(h))
    v, other_v = np.linalg.solve(exact + eye, h), np.linalg.solve(other + eye, h)
    length = norm(exact + eye, v)
    error = norm(exact + eye, other_v - v) / length
    assert float(found["direction_error"]) == pytest.approx(error, rel=0.02)
    change = noisy - h
    size = np.sqrt(change @ np.linalg.solve(exact + eye, change)) / length
    assert float(found["gradient_error"]) == pytest.approx(size, rel=0.02)
    eigenvalues = np.linalg.eigvalsh(exact)
    rank = (eigenvalues / (eigenvalues + damping)).sum()
    assert 0.9 * rank <= float(found["effective_rank"]) <= rank * (1 + 1e-6)
    for name, x in (("gradient_outside", h), ("momentum_outside", np.ones(len(h)))):
        outside = damping * np.linalg.norm(np.linalg.solve(other + eye, x)) / np.linalg.norm(x)
        assert float(found[name]) == pytest.approx(outside, rel=0.05)
    along = h / np.linalg.norm(h)
    assert 0 < float(found["curvature_floor"]) <= along @ exact @ along * (1 + 1e-9)


@pytest.mark.slow
@float64
def test_layer_coupling_is_that_of_the_block_diagonal():
    _, state = setting(Adam(), design=Network(width=6, depth=1))
    fisher = Fisher(SPACE, state.flow.forward, Exact()(SPACE, state.flow.forward))
    matrix = np.asarray(fisher.as_matrix())
    leaves = jax.tree.leaves(eqx.filter(state.flow.forward, eqx.is_inexact_array))
    layer = np.repeat(np.arange(len(leaves)), [x.size for x in leaves])
    blocks = np.where(layer[:, None] == layer, matrix, 0.0)
    expected = surrogate.coupling(jnp.asarray(matrix), jnp.asarray(blocks), 1e-2)
    found = jax.jit(lambda: layer_coupling(fisher, 1e-2, key=KEY))()
    assert float(found.value) == pytest.approx(float(expected), rel=0.01)
    assert float(expected) > 1  # layers are far from independent


@pytest.mark.slow
@float64
def test_an_objective_without_exact_gradient_is_judged_by_another_batch():
    algorithm, state = setting(Euclidean(), proposal=UniformMixture(0.2))
    flow = state.flow
    fisher = Fisher(SPACE, flow.forward, Exact()(SPACE, flow.forward))
    assert exact_gradient(algorithm, flow, fisher) is None
    found = jax.jit(lambda: certificate(algorithm, state, key=KEY))()
    assert np.isfinite(float(found["direction_error"]))


def test_effort_shrinks_with_the_environment_and_grows_with_the_batch():
    small = Algorithm(env=SPACE, rule=Adam(), batch=128)
    large = Algorithm(env=enumerate_states(ng.envs.DeceptiveGrid(side=64)), rule=Adam(), batch=4)
    assert Effort.of_twenty_updates(small).complete
    least = Effort.of_twenty_updates(large)
    assert not least.complete
    assert (
        least.iterations < Effort.of_twenty_updates(Algorithm(SPACE, Adam(), batch=16)).iterations
    )


# In training.

RULE = Natural(Sampled(), rate=0.01)
WATCH = (ng.watch.Exact(), ng.watch.Certificate(10))
OPTIONS = {"updates": 30, "seeds": 2, "batch": 16, "evaluate_every": 15, "progress": False}


def flat(run):
    leaves = jax.tree.leaves(eqx.filter(run.state, eqx.is_array))
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def test_certification_changes_nothing_in_the_run(tmp_path):
    env = ng.envs.Hypergrid(side=4)
    plain = ng.train(env, RULE, **OPTIONS, out=tmp_path / "plain")
    certified = ng.train(env, RULE, **OPTIONS, watch=WATCH, out=tmp_path / "certified")
    np.testing.assert_array_equal(flat(plain), flat(certified))
    assert plain.certificates == {}
    assert not (tmp_path / "plain" / "snapshots").exists()
    assert certified.certificates["step"].tolist() == [0, 10, 20, 30]
    assert certified.certificates["rho"].shape == (4, 2)
    assert certified.steps.tolist() == [0, 10, 15, 20, 30]
    assert certified.metrics["kl"].shape == (5, 2)


def test_a_certified_run_resumes_with_the_same_certificates(tmp_path, monkeypatch):
    env = ng.envs.Hypergrid(side=4)
    whole = ng.train(env, RULE, **OPTIONS, watch=WATCH)
    advance, calls = loop.advance, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return advance(*args)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ng.train(env, RULE, **OPTIONS, watch=WATCH, out=tmp_path)
    resumed = ng.train(env, RULE, **OPTIONS, watch=WATCH, out=tmp_path, resume=True)
    for name, values in whole.certificates.items():
        np.testing.assert_array_equal(values, resumed.certificates[name])
    np.testing.assert_array_equal(flat(whole), flat(resumed))


@pytest.mark.parametrize(("error", "shown"), [(0.1, "rho 1.5"), (float("inf"), "rho >= 1.5")])
def test_the_progress_bar_says_whether_rho_is_only_a_lower_bound(error, shown):
    line = {"kl": [0.1], "tv": [0.1], "rejected": [0]}
    line[CERTIFICATE] = {"rho": [1.0, 2.0], "rho_error": [0.0, error]}
    assert loop.note(list(WATCH), line).endswith(shown)


def test_every_must_be_positive():
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        ng.watch.Certificate(0)


@pytest.mark.slow
def test_a_quick_certificate_of_a_network_brackets_the_full_one():
    """Both of the same batch, in single precision."""
    options = {"updates": 50, "batch": 16, "watch": (ng.watch.Certificate(50),), "progress": False}
    run = ng.train(ng.envs.Hypergrid(side=6), Adam(), policy=Network(width=8), **options)
    low, error, limit = (run.certificates[k][-1] for k in ("rho", "rho_error", "direction_limit"))
    assert np.isfinite(error).all()
    state = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, run.state)
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), _CERTIFY)
    effort = Effort(complete=False)
    full = jax.jit(lambda: certificate(run.algorithm, state, key=key, effort=effort))()
    assert low <= full["rho"] * 1.001
    assert low + error >= full["rho"] * 0.999
    assert (np.isinf(limit) == (low + error >= 1)).all()


# On the command line.


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_certify_prints_tables_and_draws(tmp_path, monkeypatch):
    grid = partial(recertify.grid, batches=(16, 64), dampings=(1e-3, 1e-1))
    monkeypatch.setattr(recertify, "grid", grid)
    folder = tmp_path / "run"
    ng.train(ng.envs.Hypergrid(side=4), RULE, **OPTIONS, watch=WATCH, out=folder)
    result = invoke("certify", folder)
    assert result.exit_code == 0, result.output
    assert "update 30, batch 16, damping 0.001; the reference Fisher is exact" in result.output
    assert "direction_error" in result.output
    rows = [line.split() for line in result.output.splitlines() if line.startswith("20 ")]
    assert len(rows) == 1
    assert len(rows[0]) == 4  # the update, two batch sizes, another damping
    small, large, damped = map(float, rows[0][1:])
    assert damped < small  # more damping, less relative error
    assert large > 0
    assert (folder / "certificates.png").stat().st_size > 10_000


def test_certify_without_certificates_says_how_to_get_them(tmp_path):
    ng.train(ng.envs.Hypergrid(side=4), RULE, **OPTIONS, out=tmp_path / "run")
    result = invoke("certify", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert '{name="certificate", every=100}' in result.output
    found = json.loads(invoke("certify", tmp_path / "run", "--json").stdout)
    assert len(found["numbers"]["rho"]) == 2
    assert found["update"] == 30


SMALL = {"policy": Network(width=6, depth=1), "updates": 2, "batch": 8, "progress": False}


@pytest.fixture
def little_effort(monkeypatch):
    """Certificates by sampled references, with less effort than they take."""

    def affordable(run, batch=None, *, complete=True, share=1.0):
        return Effort(rank=0, states=4, iterations=1, complete=complete, reference=2)

    monkeypatch.setattr(recertify, "affordable", affordable)
    monkeypatch.setattr(recertify, "grid", partial(recertify.grid, batches=(), dampings=(1.0,)))


@pytest.mark.usefixtures("little_effort")
@pytest.mark.slow
def test_certify_says_where_numbers_are_lower_bounds_or_left_out(tmp_path, monkeypatch):
    """On an environment that is not enumerated."""
    told, full = [], recertify.full

    def counted(run, tell):
        return full(run, lambda: (told.append(None), tell()))

    monkeypatch.setattr(recertify, "full", counted)
    env = ng.envs.Hypergrid(side=4)
    run = ng.train(env, Adam(), **SMALL, enumerate=False, watch=(), out=tmp_path)
    result = invoke("certify", tmp_path)
    assert result.exit_code == 0, result.output
    assert "the reference Fisher is sampled from 16 trajectories (2 batches)" in result.output
    assert "rho is a lower bound: 1 iterations did not find its limit" in result.output
    assert "direction_error and gradient_error left out: 1 iterations" in result.output
    assert "nan" not in result.output
    assert recertify.products(run) == len(told)


@pytest.mark.slow
@pytest.mark.usefixtures("little_effort")
def test_the_default_rule_of_a_network_is_certified_over_training(tmp_path):
    env = ng.envs.AppendedBitSequences(length=24, word=4, modes=5, radius=8)
    run = ng.train(env, **SMALL, watch=(ng.watch.Certificate(2),), out=tmp_path)
    assert {"rho", "reference_error", "gradient_outside"} <= set(run.certificates)
    # The only running mean of gradients is that of log Z, which says nothing of the policy.
    assert "momentum_outside" not in run.certificates
    result = invoke("certify", tmp_path)
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines() if line.startswith("2 ")]
    assert rows[0][1] == ">="


def test_a_number_that_some_certificates_lack_is_nan_there():
    run = ng.train(ng.envs.Hypergrid(side=4), RULE, **OPTIONS, watch=WATCH)
    del run.history[-1][CERTIFICATE]["gradient_error"]
    found = run.certificates["gradient_error"]
    assert np.isnan(found).tolist() == [[False] * 2] * 3 + [[True] * 2]


def test_certify_of_no_run_is_one_line(tmp_path):
    result = invoke("certify", tmp_path / "nothing")
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    assert "record" in result.output


@pytest.mark.slow
@float64
def test_certify_against_a_reference_from_many_trajectories():
    """Where states cannot be enumerated, the reference is a Fisher of many more trajectories."""
    algorithm, state = setting(Adam(), design=Network(width=6, depth=1))
    policy = state.flow.forward

    def visited(count, seed):
        paths = ng.sampling.rollout(
            SPACE, policy, ng.sampling.OnPolicy(), count, key=jax.random.key(seed)
        )
        weights = jnp.where(paths.live, 1 / count, 0.0).ravel()
        return fisher_root(Fisher(SPACE, policy, Occupancy(paths.before.ravel(), weights)))

    @jax.jit
    def errors():
        exact = fisher_root(Fisher(SPACE, policy, Exact()(SPACE, policy)))
        surrogate = visited(algorithm.batch, 0)
        return [
            relative_error_estimate(
                reference, surrogate, 0.1, nystrom(reference, 64, KEY).inverse(0.1), key=KEY
            ).value
            for reference in (exact, visited(20_000, 1))
        ]

    exact, sampled = errors()
    assert float(sampled) == pytest.approx(float(exact), rel=0.05)
