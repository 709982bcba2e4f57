"""Bounds on a step, adaptive damping, and the solvers Rows and Auto, against dense NumPy."""

import functools
import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from oracles import explore, flatten, float64, log_softmax, make_flow, on_batch, random_tables

import natgfn as ng
from benchmarks.measure import Timer
from natgfn.fisher import Fisher, Occupancy
from natgfn.objectives import Huber
from natgfn.optim import FisherAdam, kl_trust_region, levenberg_marquardt
from natgfn.policies import AbstractPolicy, Network, Tabular
from natgfn.sampling import UniformMixture
from natgfn.solvers import Auto, Block, ConjugateGradients, Dense, Rows
from natgfn.statespace import enumerate_states

WORLD = explore(oracles.WORLDS["shortcuts"])
TABLES = random_tables(WORLD, 1)


# The divergence of a step.


WEIGHTS = np.linspace(0.2, 1.5, len(WORLD.forward_valid)) * (
    np.arange(len(WORLD.forward_valid)) != 1
)
STEP = np.random.default_rng(0).normal(size=TABLES.forward.shape)


def by_hand(step, statewise):
    """State 1 moves most and does not count."""
    valid = WORLD.forward_valid
    new = log_softmax(TABLES.forward + step, valid)
    found = [p[ok] @ (old[ok] - log_q[ok]) for p, old, log_q, ok in
             zip(TABLES.pf, TABLES.log_pf, new, valid, strict=True)]  # fmt: skip
    return np.max(np.where(WEIGHTS, found, 0)) if statewise else WEIGHTS @ found


@eqx.filter_jit
def bounded(step, limit, tries, statewise):
    policy = Tabular(jnp.asarray(TABLES.forward, step.dtype))
    states, weights = jnp.arange(len(WEIGHTS)), jnp.asarray(WEIGHTS, step.dtype)
    fisher = Fisher(WORLD.space, policy, Occupancy(states, weights))
    transform = kl_trust_region(limit, tries=tries, statewise=statewise)
    state = transform.init(policy)
    found, after = transform.update(Tabular(step), state, policy, fisher=fisher)
    return found.logits, after


def expected_scale(step, limit, tries, statewise):
    """The recursion, in NumPy."""
    measured = by_hand(step, statewise)
    if measured <= limit:
        return 1.0
    scale = np.sqrt(limit / measured)
    for _ in range(tries):
        if by_hand(scale * step, statewise) <= limit:
            break
        scale = scale / 2
    return scale if by_hand(scale * step, statewise) <= limit else 0.0


@pytest.mark.parametrize("statewise", [False, True])
@float64
def test_a_step_is_shortened_until_its_divergence_is_within_the_limit(statewise):
    scales = []
    for size, limit in [(1e-3, 0.01), (1.0, 0.01), (1.0, 0.3), (60.0, 0.01), (90.0, 1e-4)]:
        step = STEP.copy()
        step[1] *= 3
        step *= size
        found, after = bounded(jnp.asarray(step), jnp.asarray(limit), 8, statewise)
        scale = expected_scale(step, limit, 8, statewise)
        scales.append(scale)
        assert float(after.scale) == pytest.approx(scale, rel=1e-10)
        np.testing.assert_allclose(found, scale * step, rtol=1e-10)
        assert float(after.divergence) == pytest.approx(by_hand(scale * step, statewise), abs=1e-12)
        assert after.divergence <= limit
    assert scales[0] == 1.0
    assert 0 < scales[1] < 1
    assert 0 < scales[3] < 1


@float64
def test_when_all_tries_fail_there_is_no_step():
    """Far away the divergence is linear, so the first scale is not small enough."""
    step = 200.0 * STEP
    for tries, some in [(0, False), (1, False), (20, True)]:
        assert (expected_scale(step, 1e-4, tries, False) > 0) == some
        found, after = bounded(jnp.asarray(step), 1e-4, tries, False)
        assert np.any(found) == some
        assert (after.scale > 0) == some
        assert after.refused == (not some)


@float64
def test_a_step_that_is_not_finite_stays_so_to_be_rejected():
    found, after = bounded(jnp.asarray(STEP).at[0, 0].set(jnp.nan), 0.1, 3, False)
    assert np.isnan(found[0, 0])
    assert after.scale == 0


def test_small_divergences_keep_their_digits_in_single_precision():
    step = (1e-4 * STEP).astype(np.float32)
    _, after = bounded(jnp.asarray(step), 1.0, 0, False)
    assert float(after.divergence) == pytest.approx(by_hand(step, False), rel=1e-2)
    assert 0 < after.divergence < 1e-6


# Adaptive damping.


PICKED = np.array([0, 2, 3, 5, 5, 7, 10])
LAWS = {"proposal": UniformMixture(0.4), "reference": UniformMixture(0.1)}
STARTS = (1e-3, 0.3, 1e4)
BOUNDS = (0.2, 4000.0)


def adapted(space, flow, batch):
    """Gradient steps of rate 1 / damping, again and again from the same place."""
    params = eqx.filter(flow, eqx.is_inexact_array)
    context = {"env": space, "flow": flow, "batch": batch}

    def follow(transform):
        def once(state, _):
            step, state = transform.update(batch.gradient(), state, params, **context)
            return state, (state.damping, state.ratio, ravel_pytree(step)[0])

        return jax.lax.scan(once, transform.init(params), length=12)[1]

    def steps(damping):
        return optax.with_extra_args_support(optax.sgd(1 / damping))

    free = [follow(levenberg_marquardt(steps, start)) for start in STARTS]
    return free, follow(levenberg_marquardt(steps, 0.3, *BOUNDS))


def damping_by_hand(start, least=1e-8, most=1e8):
    """Residuals and their Jacobian from all trajectories; Huber's penalty; off-policy weights."""
    uniform = WORLD.forward_valid / WORLD.forward_valid.sum(1, keepdims=True)
    mu, nu = (oracles.path_probs(WORLD, (1 - e) * TABLES.pf + e * uniform)[PICKED]
              for e in (0.4, 0.1))  # fmt: skip
    weights, jacobian = nu / mu, oracles.jacobian(WORLD, TABLES)[PICKED]

    def residuals(step):
        forward = TABLES.forward + step[: TABLES.forward.size].reshape(TABLES.forward.shape)
        backward = TABLES.backward + step[TABLES.forward.size : -1].reshape(TABLES.backward.shape)
        moved = oracles.Tables(
            forward, backward, log_softmax(forward, WORLD.forward_valid),
            log_softmax(backward, WORLD.backward_valid), TABLES.log_z + step[-1],
        )  # fmt: skip
        return oracles.residuals(WORLD, moved)[PICKED]

    def loss(delta):
        size = np.abs(delta)
        return np.mean(weights * np.where(size < 0.7, delta**2, 0.7 * (2 * size - 0.7)))

    delta = residuals(np.zeros(jacobian.shape[1]))
    gradient = (weights * 2 * np.clip(delta, -0.7, 0.7)) @ jacobian / len(delta)
    damping = start
    for _ in range(12):
        step = -gradient / damping
        predicted = loss(delta) - loss(delta + jacobian @ step)
        actual = loss(delta) - loss(residuals(step))
        ratio = actual / predicted if predicted > 0 else 0.0
        if ratio < 1 / 4:
            damping *= 3 / 2
        elif ratio > 3 / 4:
            damping *= 2 / 3
        damping = min(max(damping, least), most)
        yield damping, ratio, step


@float64
def test_the_damping_follows_the_ratio_of_actual_to_predicted_decrease():
    free, between = on_batch(WORLD, make_flow(TABLES), adapted, PICKED, penalty=Huber(0.7), **LAWS)
    cases = [(x, damping_by_hand(start)) for x, start in zip(free, STARTS, strict=True)]
    cases.append((between, damping_by_hand(0.3, *BOUNDS)))
    for found, expected in cases:
        for x, y in zip(found, zip(*expected, strict=True), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-9)
    # Too little is raised, too much lowered.
    np.testing.assert_allclose(free[0][0], 1e-3 * 1.5 ** np.arange(1, 13), rtol=1e-12)
    np.testing.assert_allclose(free[2][0], 1e4 * (2 / 3) ** np.arange(1, 13), rtol=1e-12)
    np.testing.assert_allclose(free[2][1], 1.0, atol=0.1)


# Both as fields of a rule.


def rule_steps(space, flow, batch):
    def update(**fields):
        rule = FisherAdam(Block(), damping=1e-2, rate=5.0, **fields)
        transform, params = rule.transform(), eqx.filter(flow, eqx.is_inexact_array)
        context = rule.context(space, flow, batch)
        step, state = transform.update(batch.gradient(), transform.init(params), params, **context)
        return step, state

    return update(), update(kl=0.05), update(adaptive=True, clip=1e9)


@float64
def test_the_rule_takes_both():
    (plain, _), (short, state), (same, chained) = on_batch(
        WORLD, make_flow(TABLES), rule_steps, PICKED
    )
    region = state["forward"][-1]
    assert 0 < region.scale < 1
    assert region.divergence <= 0.05
    np.testing.assert_allclose(
        short.forward.logits, region.scale * plain.forward.logits, rtol=1e-12
    )
    np.testing.assert_array_equal(short.backward.logits, plain.backward.logits)
    np.testing.assert_allclose(flatten(same), flatten(plain), rtol=1e-12)
    assert float(chained[1].damping) == pytest.approx(1e-2 * 1.5)
    assert chained[1].ratio < 0.25


@pytest.mark.slow
def test_the_training_loop_carries_both():
    rule = FisherAdam(Block(), damping=0.1, rate=0.1, kl=1e-3, adaptive=True)
    timer = Timer(small(), rule, batch=8)
    timer.seconds(20)
    state = timer.states.optimiser
    assert timer.states.rejected == 0
    assert state.damping != pytest.approx(0.1)
    assert 0 < state.steps["forward"][-1].divergence <= 1e-3


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_the_limit_must_be_positive_and_finite(value):
    with pytest.raises(ValueError, match="kl must be positive and finite, got"):
        FisherAdam(kl=value)


def test_adaptive_damping_must_start_above_zero():
    with pytest.raises(ValueError, match="damping must be positive and finite"):
        FisherAdam(ng.solvers.BlockPseudoinverse(), damping=0.0, adaptive=True)


# Solvers.


@functools.cache
def small():
    return enumerate_states(ng.envs.DeceptiveGrid(side=4))


@functools.cache
def network():
    policy = Network(width=4, depth=1)(small(), key=jax.random.key(0))
    return jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, policy)


def problem(rows, scores):
    """Visits of which some are padding, and a right-hand side."""
    rng, space = np.random.default_rng(rows), small()
    states = jnp.asarray(rng.integers(0, space.num_inner, rows))
    weights = jnp.asarray(rng.uniform(0.1, 1, rows) * (rng.random(rows) < 0.3))
    actions = jnp.asarray(rng.integers(0, 3, rows)) if scores else None
    policy = network()
    flat, unravel = ravel_pytree(eqx.filter(policy, eqx.is_inexact_array))
    h = unravel(jnp.asarray(rng.normal(size=flat.size), flat.dtype))
    return Fisher(space, policy, Occupancy(states, weights, actions)), h


@eqx.filter_jit
def solve(solver, fisher, h, state=None):
    return solver.solve(fisher, h, 1e-2, state)


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


@pytest.mark.parametrize(("rows", "scores"), [(20, False), (256, True)])
@float64
def test_the_rows_give_the_solution_of_the_whole_matrix(rows, scores):
    fisher, h = problem(rows, scores)
    found, state = solve(Rows(), fisher, h)
    np.testing.assert_allclose(
        flat(found), flat(solve(Dense(), fisher, h)[0]), rtol=1e-8, atol=1e-8
    )
    assert state is None


class Shared(AbstractPolicy):
    parameters: jax.Array

    def __call__(self, state):
        return self.parameters[:3]


def test_auto_picks_by_type_and_cost():
    wide, narrow = Shared(jnp.zeros(1000)), Shared(jnp.zeros(30))
    assert Auto().pick(Tabular(jnp.zeros((3, 2))), 10**6, 3) == Block()
    assert Auto().pick(narrow, 4048, 3) == Dense()
    assert Auto().pick(wide, 16, 3) == Rows()
    assert Auto().pick(wide, 4048, 3) == ConjugateGradients()
    assert Auto(budget=0).pick(wide, 16, 3) == ConjugateGradients()
    assert Auto(budget=10**12).pick(wide, 4048, 3) == Dense()
    # Sampled actions make fewer rows.
    assert Auto(budget=10**7).pick(wide, 64, 3) == ConjugateGradients()
    assert Auto(budget=10**7).pick(wide, 64) == Rows()


@pytest.mark.parametrize(
    ("budget", "rows", "scores", "chosen"),
    [(0, 20, False, ConjugateGradients()), (10**8, 20, True, Rows()), (10**8, 200, False, Dense())],
)
@float64
def test_auto_solves_with_what_it_picked_and_says_so(budget, rows, scores, chosen, caplog):
    fisher, h = problem(rows, scores)
    auto = Auto(budget=budget)
    state = auto.init(h)
    with caplog.at_level(logging.INFO, logger="natgfn"):
        for _ in range(2):
            found, after = solve(auto, fisher, h, state)
    name = type(chosen).__name__
    assert [record.getMessage() for record in caplog.records] == [
        f"solver: {name} ({flat(h).size:,} parameters, {rows:,} states)"
    ]
    np.testing.assert_array_equal(flat(found), flat(solve(chosen, fisher, h, state)[0]))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    auto.check_damping(1e-3)


def test_auto_needs_damping_and_a_budget():
    with pytest.raises(ValueError, match="damping must be positive and finite"):
        Auto().check_damping(0.0)
    with pytest.raises(ValueError, match="budget must not be negative, got -1"):
        Auto(budget=-1)


def test_auto_trains_a_table_as_block():
    table = Tabular(jnp.asarray(TABLES.forward, jnp.float32))
    occupancy = Occupancy(jnp.arange(len(WEIGHTS)), jnp.asarray(WEIGHTS, jnp.float32))
    fisher = Fisher(WORLD.space, table, occupancy)
    assert Auto().init(table) is None
    for solver in (Auto(), Block()):
        found, state = solve(solver, fisher, table)
        assert state is None
    np.testing.assert_array_equal(found.logits, solve(Auto(), fisher, table)[0].logits)
