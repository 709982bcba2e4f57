"""Networks: their layers by hand, their Fisher from the Jacobian, and training with them."""

import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from oracles import explore, float64

import natgfn as ng
from natgfn import NatgfnError
from natgfn.fisher import Fisher, Occupancy
from natgfn.occupancy import Exact
from natgfn.policies import Network, Table
from natgfn.sampling import OnPolicy, rollout
from natgfn.statespace import enumerate_states
from natgfn.training import checkpoint, loop, setup_from

KEY = jax.random.key(0)
GRIDS = {
    "cube": ng.envs.Hypergrid(side=3, dims=3),
    "deceptive": ng.envs.DeceptiveGrid(side=6),
}
EXACT = Exact()


@functools.cache
def enumerated(name):
    return enumerate_states(GRIDS[name]) if name in GRIDS else explore(oracles.WORLDS[name]).space


def trainable(policy):
    return eqx.filter(policy, eqx.is_inexact_array)


# The layers.


def by_hand(policy, weight, bias, inputs):
    """The logits of all inputs, by dense products."""
    x = inputs @ np.asarray(weight).T + np.asarray(bias)
    for layer in policy.rest:
        x = np.where(x > 0, x, 0.01 * x) @ np.asarray(layer.weight).T + np.asarray(layer.bias)
    return x


all_logits = eqx.filter_jit(lambda policy, states: jax.vmap(policy)(states))


@pytest.mark.parametrize(("name", "depth"), [("cube", 1), ("deceptive", 3)])
@float64
def test_on_a_grid_the_network_is_dense_layers_on_the_one_hot_code(name, depth):
    env, space = GRIDS[name], enumerated(name)
    policy = Network(width=5, depth=depth)(space, key=KEY)
    assert [layer.weight.shape for layer in policy.rest] == [
        *[(5, 5)] * (depth - 1), (space.num_actions, 5)
    ]  # fmt: skip
    one_hot = np.zeros((space.num_states, env.dims * env.side))
    for row, cell in zip(one_hot, np.asarray(space.states.cell), strict=True):
        for d, value in enumerate(cell):
            row[env.side * d + value] = 1
    found = np.asarray(all_logits(policy, jnp.arange(space.num_states)))
    expected = by_hand(policy, policy.first.rows.T, policy.first.bias, one_hot)
    assert found.shape == (space.num_states, space.num_actions)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)
    # Different cells are told apart.
    assert len(np.unique(expected[:, 0].round(12))) == len(np.unique(one_hot, axis=0))


@pytest.mark.parametrize("name", ["tree", "shortcuts"])
@float64
def test_elsewhere_the_network_is_dense_layers_on_what_is_observed(name):
    space = explore(oracles.WORLDS[name]).space
    policy = Network(width=5, depth=2)(space, key=KEY)
    states = jax.tree.map(jnp.asarray, space.states)
    observed = np.asarray(jax.vmap(space.env.observe)(states), np.float32).astype(np.float64)
    found = np.asarray(all_logits(policy, jnp.arange(space.num_states)))
    expected = by_hand(policy, policy.first.linear.weight, policy.first.linear.bias, observed)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)
    assert np.ptp(expected, axis=0).min() > 1e-3


def test_features_are_kept_bit_by_bit_in_float32():
    space, policy = enumerated("tree"), network("tree")
    observed = jax.vmap(space.env.observe)(jax.tree.map(jnp.asarray, space.states))
    assert observed.dtype == jnp.float32
    np.testing.assert_array_equal(policy.first.observation.table.view(np.float32), observed)


# The parameters.


@functools.cache
def network(name, width=32, depth=2):
    return Network(width, depth)(enumerated(name), key=KEY)


def count(policy):
    return sum(x.size for x in jax.tree.leaves(trainable(policy)))


def dense_count(inputs, width, depth, actions):
    return (inputs + 1) * width + (depth - 1) * (width + 1) * width + (width + 1) * actions


@pytest.mark.parametrize(
    ("name", "inputs", "width", "depth"),
    [("deceptive", 12, 32, 2), ("tree", 6, 32, 2), ("grid", 6, 8, 1)],
)
def test_the_parameters_are_those_of_the_layers_and_no_others(name, inputs, width, depth):
    expected = dense_count(inputs, width, depth, enumerated(name).num_actions)
    assert count(network(name, width, depth)) == expected


def test_the_default_network_on_the_large_grid_has_17571_parameters():
    """At a size that nobody wants to enumerate here."""
    assert count(Network()(ng.envs.DeceptiveGrid(side=256), key=KEY)) == 17_571


@pytest.mark.parametrize(("name", "table"), [("deceptive", "coordinates"), ("tree", "observation")])
def test_the_input_is_no_parameter(name, table):
    """Not by type, not by gradient, and not inside a compiled function either."""
    policy = network(name)
    assert getattr(trainable(policy).first, table).table is None

    def loss(policy, states):
        return jnp.sum(jax.vmap(policy)(states) ** 2)

    @eqx.filter_jit
    def inside(policy, states):
        # Numbers of the table are traced here, as the parameters are.
        assert isinstance(getattr(policy.first, table).table, jax.core.Tracer)
        assert getattr(trainable(policy).first, table).table is None
        return eqx.filter_grad(loss)(policy, states)

    gradient = inside(policy, jnp.arange(enumerated(name).num_inner))
    assert jax.tree.structure(gradient) == jax.tree.structure(trainable(policy))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("name", ["deceptive", "tree"])
def test_weights_start_within_one_over_the_root_of_the_inputs(name):
    policy = network(name)
    first = policy.first
    layers = [(first.rows.T, first.bias)] if name == "deceptive" else [first.linear]
    layers = [*layers, *policy.rest]
    assert len(layers) == 3
    for layer in layers:
        weight, bias = layer if isinstance(layer, tuple) else (layer.weight, layer.bias)
        limit = 1 / np.sqrt(weight.shape[1])
        assert np.abs(weight).max() <= limit
        assert np.abs(bias).max() <= limit
        # As wide as that, and on both sides of zero.
        assert np.max(weight) > 0.9 * limit
        assert np.min(weight) < -0.9 * limit


def test_the_key_decides_the_weights():
    space = enumerated("deceptive")
    same, other = (Network()(space, key=jax.random.key(i)) for i in (0, 1))
    flat = [np.asarray(ravel_pytree(trainable(p))[0]) for p in (network("deceptive"), same, other)]
    np.testing.assert_array_equal(flat[0], flat[1])
    assert np.mean(flat[0] != flat[2]) > 0.99


@pytest.mark.parametrize("field", ["width", "depth"])
def test_a_network_without_width_or_depth_is_refused(field):
    with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
        Network(**{field: 0})


# The Fisher.


@functools.cache
def perturbed(env):
    """A network whose policy is not uniform."""
    policy = Network(width=4, depth=2)(explore(env).space, key=jax.random.key(0))
    return jax.tree.map(lambda x: 2.5 * x if eqx.is_inexact_array(x) else x, policy)


@eqx.filter_jit
def logits_and_jacobian(policy, states):
    params, static = eqx.partition(policy, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(params)

    def logits(flat):
        return jax.vmap(eqx.combine(unravel(flat), static))(states)

    return logits(flat), jax.jacobian(logits)(flat)


def dense_fisher(policy, occupancy, valid):
    r"""$\sum_k w_k J_k^\top C_k J_k$."""
    logits, jacobian = map(np.asarray, logits_and_jacobian(policy, occupancy.states))
    probs = np.exp(oracles.log_softmax(logits, valid))
    total = np.zeros((jacobian.shape[2],) * 2)
    for k, (w, p, j) in enumerate(zip(occupancy.weights, probs, jacobian, strict=True)):
        c = np.diag(p) - np.outer(p, p)
        if occupancy.actions is not None:
            score = -p
            score[occupancy.actions[k]] += 1
            c = np.outer(score, score)
        total += float(w) * j.T @ c @ j
    return total


@eqx.filter_jit
def all_of(space, policy, occupancy, v):
    """Everything the operator can do: F and its products, and both roots as matrices."""
    fisher = Fisher(space, policy, occupancy)
    flat, unravel = ravel_pytree(trainable(policy))
    line = fisher.linearise()
    shape = line.root(unravel(flat)).shape
    rows = int(np.prod(shape))
    root = jax.vmap(lambda x: line.root(unravel(x)).ravel(), out_axes=1)(jnp.eye(flat.size))
    transposed = jax.vmap(lambda y: ravel_pytree(line.transpose(y.reshape(shape)))[0], out_axes=1)
    return {
        "matrix": fisher.as_matrix(),
        "mv": ravel_pytree(line.mv(unravel(v)))[0],
        "root": root,
        "transpose": transposed(jnp.eye(rows)),
    }


def check_fisher(space, policy, occupancy, expected):
    v = np.random.default_rng(0).normal(size=len(expected))
    found = {k: np.asarray(x) for k, x in all_of(space, policy, occupancy, v).items()}
    scale = np.abs(expected).max()
    assert scale > 0.01
    near = {"rtol": 1e-11, "atol": 1e-13 * scale}
    np.testing.assert_allclose(found["matrix"], expected, **near)
    np.testing.assert_allclose(found["mv"], expected @ v, rtol=1e-10, atol=1e-12 * scale)
    # <R v, y> = <v, R^T y> for all unit vectors, and what R^T makes of white noise.
    root, transpose = found["root"], found["transpose"]
    np.testing.assert_allclose(root.T, transpose, rtol=1e-12, atol=1e-14 * scale)
    np.testing.assert_allclose(root.T @ root, expected, **near)
    np.testing.assert_allclose(sum(np.outer(x, x) for x in transpose.T), expected, **near)


@float64
def test_the_exact_fisher_of_a_network_is_its_definition(world):
    """The occupancy, and the Fisher of `eq:exact_fisher_main`, from all trajectories."""
    policy = perturbed(world.env)
    states = jnp.arange(world.space.num_inner)
    logits, jacobian = map(np.asarray, logits_and_jacobian(policy, states))
    pf = np.exp(oracles.log_softmax(logits, world.forward_valid))
    valid = world.forward_valid.sum(1, keepdims=True)
    assert np.abs(pf - world.forward_valid / valid).max() > 0.05
    exact = eqx.filter_jit(EXACT)(world.space, policy)
    np.testing.assert_allclose(exact.weights, oracles.occupancy(world, pf), rtol=1e-12)
    occupancy = Occupancy(states, jnp.asarray(oracles.occupancy(world, pf)))
    expected = dense_fisher(policy, occupancy, world.forward_valid)
    z = oracles.scores(world, pf) @ jacobian.reshape(pf.size, -1)
    by_trajectory = (oracles.path_probs(world, pf)[:, None] * z).T @ z
    np.testing.assert_allclose(expected, by_trajectory, atol=1e-12)
    check_fisher(world.space, policy, exact, expected)


@pytest.mark.slow
@pytest.mark.parametrize("with_actions", [False, True])
@pytest.mark.parametrize("name", ["grid", "shortcuts"])
@float64
def test_the_sampled_fisher_of_a_network_is_its_definition(name, with_actions):
    world = explore(oracles.WORLDS[name])
    space, policy = world.space, perturbed(world.env)
    paths = draw(space, policy, 12, jax.random.key(2))
    states, live = np.ravel(paths.before), np.ravel(paths.live)
    assert not live.all()  # trajectories that ended early are padded
    occupancy = Occupancy(
        jnp.asarray(states),
        jnp.asarray(live / 12),
        jnp.ravel(paths.actions) if with_actions else None,
    )
    valid = np.append(world.forward_valid, np.zeros((space.num_terminal, space.num_actions)), 0)
    expected = dense_fisher(policy, occupancy, valid[states].astype(bool))
    check_fisher(space, policy, occupancy, expected)


@eqx.filter_jit
def draw(space, policy, num, key):
    return rollout(space, policy, OnPolicy(), num, key=key)


# Training.

GRID = ng.envs.Hypergrid(side=4)
NETWORK = Network(width=8, depth=1)
OPTIONS = {"policy": NETWORK, "batch": 32, "seeds": 2, "progress": False}
RULE = ng.optim.Adam(rate=2e-2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A whole run; also what its chunks compiled, and what they started from."""
    compiled, states_before = [], []

    def watched(algorithm, states, count, mesh):
        states_before.append(jax.tree.map(np.array, trainable(states.flow.forward)))
        events = []

        def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
            if "compile" in event:
                events.append(event)

        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            return advance(algorithm, states, count, mesh)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
            compiled.append(len(events))

    advance = loop.advance
    out = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "advance", watched)
        run = ng.train(GRID, RULE, updates=300, evaluate_every=60, out=out, **OPTIONS)
    return run, compiled, states_before


def test_a_network_learns(run):
    kl = run[0].metrics["kl"]
    assert np.all(kl[0] > 0.4)
    assert np.all(kl[-1] < 0.1 * kl[0])
    assert not run[0].metrics["rejected"].any()


def test_the_update_is_compiled_once_for_all_chunks(run):
    _, (first, *later), _ = run
    assert first > 0
    assert later == [0, 0, 0, 0]


def test_every_seed_starts_from_parameters_of_its_own(run):
    run, _, before = run
    for seed in range(2):
        expected = trainable(NETWORK(run.space, key=jax.random.key(seed)))
        for found, leaf in zip(jax.tree.leaves(before[0]), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(found[seed], leaf)
    assert np.abs(before[0].first.rows[0] - before[0].first.rows[1]).min() > 0
    # All of them are trained.
    for old, new in zip(jax.tree.leaves(before[0]), jax.tree.leaves(before[1]), strict=True):
        assert np.mean(old != new) > 0.9
    assert run.configuration["policy"] == {"name": "Network", "width": 8, "depth": 1}


def test_the_input_table_survives_training(run):
    fresh = NETWORK(run[0].space, key=KEY)
    for seed in range(2):
        table = run[0].flow(seed).forward.first.coordinates.table
        np.testing.assert_array_equal(table, fresh.first.coordinates.table)


def arrays(folder):
    with np.load(folder / "checkpoint.npz") as file:
        return {name: file[name].tobytes() for name in file.files}


def lines(folder):
    """The record, without what a clock says."""
    found = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in found]


def test_a_network_resumes_bit_by_bit(run, tmp_path):
    options = OPTIONS | {"updates": 300, "evaluate_every": 60, "out": tmp_path / "stopped"}
    saved, save = [], checkpoint.save

    def failing(*args, **options):
        if len(saved) == 3:
            raise NatgfnError("stopped here")
        saved.append(save(*args, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", failing)
        with pytest.raises(NatgfnError, match="stopped here"):
            ng.train(GRID, RULE, **options)
    whole = run[0].folder
    assert arrays(options["out"]) != arrays(whole)
    ng.train(GRID, RULE, resume=True, **options)
    assert arrays(options["out"]) == arrays(whole)
    assert lines(options["out"]) == lines(whole)


@pytest.mark.slow
def test_the_default_rule_of_a_network_learns_without_tuning():
    found = ng.train(GRID, updates=300, **OPTIONS)
    assert found.configuration["rule"]["momentum"] == 0.9
    kl = found.metrics["kl"]
    assert np.all(kl[-1] < 0.05 * kl[0])


def test_a_network_can_be_configured():
    found = setup_from(
        {"env": {"name": "Hypergrid"}, "policy": {"name": "Network", "width": 8}, "rule": "Adam"}
    )
    assert found.policy == Network(width=8, depth=2)
    assert found.env == ng.envs.Hypergrid()
    assert isinstance(found.rule, ng.optim.Adam)
    table = setup_from({"env": {"name": "Hypergrid"}, "policy": "table"})
    assert isinstance(table.policy, Table)
    with pytest.raises(NatgfnError, match="policy: width must be at least 1, got 0"):
        setup_from({"env": {"name": "Hypergrid"}, "policy": {"name": "Network", "width": 0}})
