"""The other objectives: detailed, sub-trajectory balance, flow matching, the variance of log Z."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from oracles import explore, facts, float64, make_flow, on_batch, random_tables

import natgfn as ng
from natgfn.fisher import ScoreFisher
from natgfn.objectives import (
    DetailedBalance,
    FlowMatching,
    Huber,
    LogVariance,
    SubTrajectoryBalance,
    TrajectoryBalance,
)
from natgfn.policies import Flow, Network, Tabular
from natgfn.statespace import constructive_flow

OBJECTIVES = {
    "DB": DetailedBalance(),
    "SubTB": SubTrajectoryBalance(decay=0.7),
    "FM": FlowMatching(),
    "VarGrad": LogVariance(),
}
LOOKING = {
    "DB": DetailedBalance(forward_looking=True),
    "SubTB": SubTrajectoryBalance(forward_looking=True),
    "FM": FlowMatching(forward_looking=True),
}


def random_flow(world, seed):
    """Tables, and learned state flows beside them."""
    tables = random_tables(world, seed)
    states = np.random.default_rng(seed).normal(size=(world.space.num_inner, 1))
    flow = make_flow(tables)
    return tables, states[:, 0], Flow(flow.forward, flow.backward, flow.log_z, as_table(states))


def as_table(values):
    return Tabular(jnp.asarray(values))


def loss_by_hand(world, tables, states, name, decay=0.7):
    """Every objective by its definition, with loops, averaged over all trajectories."""
    log_flow = np.concatenate([states, world.space.log_rewards])
    log_flow[0] = tables.log_z
    if name == "VarGrad":
        return np.var(oracles.residuals(world, tables))
    total = 0.0
    for path in world.paths:
        steps = list(zip(path.states[:-1], path.actions, path.states[1:], strict=True))
        if name == "FM":
            values = [
                np.logaddexp.reduce(
                    [
                        log_flow[s] + tables.log_pf[s, a]
                        for s, a in np.argwhere(world.space.child == state)
                    ]
                )
                - log_flow[state]
                for state in path.states[1:]
            ]
            total += np.mean(np.square(values))
            continue
        values, shares = [], []
        for i in range(len(steps)):
            for j in range(i + 1, len(steps) + 1):
                gained = sum(
                    tables.log_pf[s, a] - tables.log_pb[after, a] for s, a, after in steps[i:j]
                )
                values.append(log_flow[path.states[i]] + gained - log_flow[path.states[j]])
                shares.append(float(j == i + 1) if name == "DB" else decay ** (j - i))
        total += np.average(np.square(values), weights=shares)
    return total / len(world.paths)


@pytest.mark.parametrize("name", OBJECTIVES)
@float64
def test_the_loss_is_the_definition(world, name):
    tables, states, flow = random_flow(world, 7)
    found = on_batch(world, flow, facts, objective=OBJECTIVES[name])
    assert float(found.loss) == pytest.approx(loss_by_hand(world, tables, states, name), rel=1e-10)


@pytest.mark.parametrize("name", OBJECTIVES)
@float64
def test_residuals_vanish_at_the_constructive_flow(world, name):
    tables = random_tables(world, 2)
    log_flow, log_pf = eqx.filter_jit(constructive_flow)(
        world.space, jnp.asarray(tables.log_pb), jnp.asarray(world.space.log_rewards)
    )
    logits = jnp.where(log_pf > -jnp.inf, log_pf, 0.0)
    states = as_table(log_flow[: world.space.num_inner, None])
    exact = Flow(Tabular(logits), Tabular(jnp.asarray(tables.backward)), log_flow[0], states)
    found = on_batch(world, exact, facts, objective=OBJECTIVES[name])
    np.testing.assert_allclose(found.residuals * found.shares, 0.0, atol=1e-12)
    wrong = eqx.tree_at(
        lambda f: f.forward.logits,
        exact,
        1.1 * logits + jnp.arange(logits.size).reshape(logits.shape) % 3,
    )
    assert on_batch(world, wrong, facts, objective=OBJECTIVES[name]).loss > 1e-3


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", ["grid", "shortcuts"])
@float64
def test_gradients_are_finite_differences_of_the_definition(kind, name):
    world = explore(oracles.WORLDS[kind])
    tables, states, flow = random_flow(world, 3)
    gradient = on_batch(world, flow, facts, objective=OBJECTIVES[name]).gradient
    step = 1e-5

    def slope(change):
        up, down = (loss_by_hand(world, *change(by), name) for by in (step, -step))
        return (up - down) / (2 * step)

    def move_forward(at):
        def change(by):
            logits = tables.forward.copy()
            logits[at] += by
            log_pf = oracles.log_softmax(logits, world.forward_valid)
            return tables._replace(forward=logits, log_pf=log_pf), states

        return change

    def move_state(at):
        return lambda by: (tables, states + by * (np.arange(len(states)) == at))

    forward = [slope(move_forward(at)) for at in np.ndindex(tables.forward.shape)]
    np.testing.assert_allclose(np.ravel(gradient.forward.logits), forward, atol=1e-7)
    flows = [slope(move_state(at)) for at in range(len(states))]
    np.testing.assert_allclose(np.ravel(gradient.states.logits), flows, atol=1e-7)
    log_z = slope(lambda by: (tables._replace(log_z=tables.log_z + by), states))
    assert float(gradient.log_z) == pytest.approx(log_z, abs=1e-7)
    if name == "VarGrad":
        assert float(gradient.log_z) == 0


@float64
def test_sub_trajectory_balance_lies_between_detailed_and_trajectory_balance():
    world = explore(oracles.WORLDS["shortcuts"])
    _, _, flow = random_flow(world, 5)
    losses = [
        float(on_batch(world, flow, facts, objective=objective).loss)
        for objective in (
            DetailedBalance(),
            SubTrajectoryBalance(decay=1e-8),
            SubTrajectoryBalance(decay=1e8),
            TrajectoryBalance(),
        )
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[2] == pytest.approx(losses[3], rel=1e-6)


@float64
def test_a_penalty_applies_to_every_residual():
    world = explore(oracles.WORLDS["shortcuts"])
    _, _, flow = random_flow(world, 5)
    found = on_batch(world, flow, facts, objective=DetailedBalance(Huber(0.3)))
    size = np.abs(found.residuals)
    expected = np.where(size < 0.3, size**2, 0.3 * (2 * size - 0.3)) @ np.asarray(found.shares)
    assert float(found.loss) == pytest.approx(expected / len(world.paths))


@pytest.mark.parametrize("name", LOOKING)
@float64
def test_a_forward_looking_flow_is_the_factor_beside_the_partial_reward(name):
    world = explore(oracles.WORLDS["grid"])
    _, states, flow = random_flow(world, 4)
    env, space = world.space.env, world.space
    partial = np.asarray(jax.vmap(env.log_partial)(jax.tree.map(jnp.asarray, space.states)))
    found = on_batch(world, flow, facts, objective=LOOKING[name])
    whole = as_table((states + partial[: space.num_inner])[:, None])
    plain = eqx.tree_at(lambda o: o.forward_looking, LOOKING[name], False)
    same = on_batch(world, eqx.tree_at(lambda f: f.states, flow, whole), facts, objective=plain)
    np.testing.assert_allclose(found.residuals, same.residuals, atol=1e-12)


def test_an_environment_without_partial_rewards_says_so():
    objective = DetailedBalance(forward_looking=True)
    with pytest.raises(ValueError, match="Dag gives no reward to partial objects"):
        ng.train(oracles.SHORTCUTS, ng.optim.Adam(), objective=objective, updates=1, progress=False)


def test_natural_without_a_rate_asks_for_one_with_state_flows():
    with pytest.raises(ValueError, match="give it a rate"):
        ng.train(
            oracles.SHORTCUTS,
            ng.optim.Natural(),
            objective=DetailedBalance(),
            updates=1,
            progress=False,
        )


@pytest.mark.parametrize("decay", [0.0, -1.0, float("inf")])
def test_a_decay_must_be_positive(decay):
    with pytest.raises(ValueError, match="decay must be positive"):
        SubTrajectoryBalance(decay=decay)


@float64
def test_the_iterated_step_solves_the_dense_system():
    """`proximal_step` without a Gram matrix, for a network with many residuals a trajectory."""
    world = explore(oracles.WORLDS["shortcuts"])
    space = world.space
    forward = Network(3, 1)(space, key=jax.random.key(0))
    states = Network(3, 1)(space, key=jax.random.key(1), outputs=1)
    _, _, flow = random_flow(world, 4)
    flow = Flow(forward, flow.backward, flow.log_z, states)
    flow = jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, flow)

    def steps(space, flow, batch):
        zero = jax.tree.map(jnp.zeros_like, batch.pull(batch.residuals))
        flat, unravel = jax.flatten_util.ravel_pytree(zero)
        jacobian = jax.lax.map(lambda v: batch.push(unravel(v)), jnp.eye(flat.size)).T
        weights = batch.least_squares_weights()
        metric = jacobian.T @ (weights[:, None] * jacobian) / batch.size
        right = jacobian.T @ (weights * batch.residuals) / batch.size
        dense = jnp.linalg.solve(metric + 0.3 * jnp.eye(flat.size), right)
        found, taken = ng.solvers.proximal_step(ScoreFisher(space, flow, batch), 0.3)
        found = jax.flatten_util.ravel_pytree(found)[0]
        return dense, found, taken - jacobian @ found

    dense, found, none = on_batch(world, flow, steps, objective=SubTrajectoryBalance())
    assert np.linalg.norm(dense - found) < 2e-3 * np.linalg.norm(dense)
    np.testing.assert_allclose(none, 0, atol=1e-9)


SAMPLED = ng.occupancy.Sampled()
PAIRS = [
    ("DB", ng.optim.SampleSpace()),
    ("SubTB", ng.optim.Natural(SAMPLED, rate=0.05, log_z_rate=0.5, flow_rate=0.1)),
    ("FM", ng.optim.Adam(0.1)),
    ("VarGrad", ng.optim.Natural(SAMPLED)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_objectives_train_with_any_rule(name, rule):
    run = ng.train(
        ng.envs.Hypergrid(side=4),
        rule,
        objective=OBJECTIVES[name],
        batch=64,
        updates=600,
        evaluate_every=600,
        progress=False,
    )
    kl = run.metrics["kl"][:, 0]
    assert kl[-1] < 0.1 * kl[0]
    assert run.metrics["rejected"][-1] == 0
