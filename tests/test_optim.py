"""Update rules: Algorithm 1 line by line, in dense linear algebra."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from oracles import explore, flatten, float64, make_flow, on_batch, random_tables

from natgfn.fisher import Fisher
from natgfn.objectives import Huber
from natgfn.occupancy import Exact, Sampled, SampledScores
from natgfn.optim import (
    Adam,
    Cosine,
    Euclidean,
    Linear,
    Natural,
    SampleSpace,
    by_part,
    natural_gradient,
)
from natgfn.policies import Flow, Tabular
from natgfn.sampling import UniformMixture
from natgfn.solvers import Block, BlockPseudoinverse
from natgfn.statespace import exact_residuals

EPSILONS = (0.4, 0.1)
LAWS = {"proposal": UniformMixture(EPSILONS[0]), "reference": UniformMixture(EPSILONS[1])}


@pytest.fixture(scope="module")
def problem():
    """Everything of Algorithm 1 by hand: a batch, its weights, gradients and Fishers."""
    world = explore(oracles.WORLDS["shortcuts"])
    return Problem(world, np.array([0, 2, 3, 5, 5, 7, 10]))


class Problem:
    def __init__(self, world, picked):
        self.world, self.picked, self.tables = world, picked, random_tables(world, 1)
        pf = self.tables.pf
        uniform = world.forward_valid / world.forward_valid.sum(1, keepdims=True)
        mu, nu = (oracles.path_probs(world, (1 - e) * pf + e * uniform)[picked] for e in EPSILONS)
        self.weights = nu / mu
        self.omega = oracles.path_probs(world, pf)[picked] / mu
        self.delta = oracles.residuals(world, self.tables)[picked]
        self.jacobian = oracles.jacobian(world, self.tables)[picked]
        self.size = pf.size

    def gradient(self, slope):
        return (self.weights * slope(self.delta)) @ self.jacobian / len(self.delta)

    def fishers(self):
        pf, count = self.tables.pf, len(self.delta)
        per_path = np.zeros(len(self.world.paths))
        np.add.at(per_path, self.picked, self.omega / count)
        outer = oracles.step_fisher(self.world, pf, per_path)
        covariance = np.zeros((*pf.shape, *pf.shape))
        for state, visits in enumerate(per_path @ self.world.visits):
            p = pf[state]
            covariance[state, :, state] = visits * (np.diag(p) - np.outer(p, p))
        return {
            "exact": oracles.trajectory_fisher(self.world, pf),
            "sampled": covariance.reshape(outer.shape),
            "scores": outer,
        }

    def run(self, then, **options):
        return on_batch(self.world, make_flow(self.tables), then, self.picked, **LAWS, **options)


ROUTES = {"exact": Exact(), "sampled": Sampled(), "scores": SampledScores()}


def update(rule, space, flow, batch):
    params = eqx.filter(flow, eqx.is_inexact_array)
    transform = rule.transform()
    context = rule.context(space, flow, batch)
    return transform.update(batch.gradient(), transform.init(params), params, **context)[0]


def natural_updates(space, flow, batch):
    return {
        name: update(Natural(route, Block(), 1e-2, 0.3, 0.05, 0.2), space, flow, batch)
        for name, route in ROUTES.items()
    }


@float64
def test_a_natural_step_is_algorithm_1_line_by_line(problem):
    r"""$\Delta\theta = -\eta (\widehat F + \lambda I)^{-1} \widehat h$; the rest is Euclidean.

    Off-policy, with a Huber loss, so that $w$, $\omega$ and $\ell'$ all matter.
    """
    found = problem.run(natural_updates, penalty=Huber(0.7))
    gradient = problem.gradient(lambda u: 2 * np.clip(u, -0.7, 0.7))
    h, rest = gradient[: problem.size], gradient[problem.size :]
    for name, fisher in problem.fishers().items():
        forward = -0.3 * np.linalg.solve(fisher + 1e-2 * np.eye(len(h)), h)
        np.testing.assert_allclose(np.ravel(found[name].forward.logits), forward, atol=1e-12)
        backward = np.ravel(found[name].backward.logits)
        np.testing.assert_allclose(backward, -0.05 * rest[:-1], atol=1e-13)
        assert float(found[name].log_z) == pytest.approx(-0.2 * rest[-1])
    steps = [np.ravel(found[name].forward.logits) for name in ROUTES]
    assert (
        min(np.abs(a - b).max() for a, b in zip(steps, steps[1:] + steps[:1], strict=True)) > 0.01
    )


def other_updates(space, flow, batch):
    return {
        "euclidean": update(Euclidean(0.3, 0.05, 0.2), space, flow, batch),
        "adam": update(Adam(0.3, 0.05, 0.2), space, flow, batch),
        "sample space": update(SampleSpace(1e-2), space, flow, batch),
        "fitted": update(Natural(Sampled(), Block(), 1e-2, None, 0.05), space, flow, batch),
        "direction": Block().solve(
            Fisher(space, flow.forward, Sampled()(space, flow.forward, batch)),
            batch.pull(
                2
                * batch.least_squares_weights()
                / batch.least_squares_weights().sum()
                * (
                    batch.residuals
                    - jnp.average(batch.residuals, weights=batch.least_squares_weights())
                )
            ).forward,
            1e-2,
        )[0],
    }


@pytest.fixture(scope="module")
def steps(problem):
    with jax.enable_x64(True):
        return problem.run(other_updates)


def test_euclidean_steps_are_the_rates_times_the_gradient(problem, steps):
    gradient = problem.gradient(lambda u: 2 * u)
    forward, backward = problem.size, len(gradient) - problem.size - 1
    rates = np.repeat([0.3, 0.05, 0.2], [forward, backward, 1])
    np.testing.assert_allclose(flatten(steps["euclidean"]), -rates * gradient, atol=1e-13)


def test_the_first_step_of_adam_is_the_rate_in_every_direction(problem, steps):
    gradient = problem.gradient(lambda u: 2 * u)
    forward, backward = problem.size, len(gradient) - problem.size - 1
    rates = np.repeat([0.3, 0.05, 0.2], [forward, backward, 1])
    moved = np.abs(gradient) > 1e-3
    np.testing.assert_allclose(
        flatten(steps["adam"])[moved], (-rates * np.sign(gradient))[moved], rtol=1e-4
    )


def test_the_sample_space_rule_is_damped_gauss_newton(problem, steps):
    jacobian, weights = problem.jacobian, problem.weights
    matrix = (weights[:, None] * jacobian).T @ jacobian / len(jacobian)
    right = jacobian.T @ (weights * problem.delta) / len(jacobian)
    expected = -np.linalg.solve(matrix + 1e-2 * np.eye(len(matrix)), right)
    np.testing.assert_allclose(flatten(steps["sample space"]), expected, atol=1e-12)


def test_the_fitted_rate_and_log_z_are_the_least_squares_optimum(problem, steps):
    r"""$\eta, \zeta = \arg\min \sum_i w_i (\delta_i + \zeta - \eta z_i^\top v)^2$, by `lstsq`."""
    z = problem.jacobian[:, : problem.size]
    share = problem.weights / problem.weights.sum()
    centred = problem.delta - share @ problem.delta
    fisher = problem.fishers()["sampled"] + 1e-2 * np.eye(problem.size)
    direction = np.linalg.solve(fisher, 2 * (share * centred) @ z)
    np.testing.assert_allclose(np.ravel(steps["direction"].logits), direction, atol=1e-11)
    root = np.sqrt(problem.weights)
    columns = np.stack([z @ direction, -np.ones(len(z))], axis=1)
    rate, change = np.linalg.lstsq(root[:, None] * columns, root * problem.delta, rcond=None)[0]
    assert rate > 0.01
    step = steps["fitted"]
    np.testing.assert_allclose(np.ravel(step.forward.logits), -rate * direction, atol=1e-11)
    assert float(step.log_z) == pytest.approx(change, rel=1e-9)
    euclidean = np.ravel(steps["euclidean"].backward.logits)
    np.testing.assert_allclose(np.ravel(step.backward.logits), euclidean, atol=1e-14)


def fitted_updates(space, flow, batch):
    return update(Natural(Exact(), Block(), 1e-3), space, flow, batch)


@float64
def test_equal_residuals_leave_nothing_to_fit_but_log_z():
    """Trajectories into one object of a tree, drawn twice: only the level is off."""
    world = explore(oracles.WORLDS["tree"])
    tables = random_tables(world, 2)
    step = on_batch(world, make_flow(tables), fitted_updates, np.array([3, 3]))
    delta = oracles.residuals(world, tables)[3]
    np.testing.assert_array_equal(step.forward.logits, 0.0)
    assert float(step.log_z) == pytest.approx(-delta, rel=1e-12)


@float64
def test_the_exact_natural_gradient_is_twice_the_advantage(world):
    r"""$(d\, C(\pi))^\dagger h_s = 2 A(s, \cdot)$ up to a constant, with $A$ by brute force."""
    tables = random_tables(world, 3)

    @eqx.filter_jit
    def natural(space, policy, log_pf, log_pb, log_z):
        h = exact_residuals(space, log_pf, log_pb, log_z).score_gradient
        fisher = Fisher(space, policy, Exact()(space, policy))
        return BlockPseudoinverse().solve(fisher, Tabular(h), 0.0)[0].logits

    found = np.asarray(
        natural(
            world.space,
            Tabular(jnp.asarray(tables.forward)),
            jnp.asarray(tables.log_pf),
            jnp.asarray(tables.log_pb),
            jnp.asarray(tables.log_z),
        )
    )
    # What is still to come of the residual after each visit, averaged over trajectories.
    q = oracles.path_probs(world, tables.pf)
    total, mass = np.zeros(tables.pf.shape), np.zeros(tables.pf.shape)
    for probability, path, log_reward in zip(q, world.paths, world.log_rewards, strict=True):
        ahead = -log_reward
        edges = list(zip(path.states, path.actions, path.states[1:], strict=False))
        for state, action, child in reversed(edges):
            ahead += tables.log_pf[state, action] - tables.log_pb[child, action]
            total[state, action] += probability * ahead
            mass[state, action] += probability
    for state, valid in enumerate(world.forward_valid):
        ahead = total[state, valid] / mass[state, valid]
        advantage = ahead - total[state].sum() / mass[state].sum()
        expected = 2 * (advantage - advantage.mean())
        np.testing.assert_allclose(found[state, valid], expected, atol=1e-10)
        assert not found[state, ~valid].any()


def composed_updates(space, flow, batch):
    """Clipping before the solve, momentum after it, two steps with the same batch."""
    forward = optax.chain(
        optax.clip_by_global_norm(0.1),
        natural_gradient(Block(), 1e-2),
        optax.sgd(0.5, momentum=0.9),
    )
    log_z = optax.chain(optax.clip(0.01), optax.sgd(1.0))
    transform = by_part(forward, optax.sgd(0.05), log_z, optax.identity())
    params = eqx.filter(flow, eqx.is_inexact_array)
    visited = Exact()(space, flow.forward, batch)
    state, steps = transform.init(params), []
    for _ in range(2):
        step, state = transform.update(
            batch.gradient(), state, params, fisher=Fisher(space, flow.forward, visited)
        )
        steps.append(step)
    return steps


@float64
def test_natural_steps_compose_with_clipping_and_momentum_of_optax(problem):
    first, second = problem.run(composed_updates)
    gradient = problem.gradient(lambda u: 2 * u)
    h = gradient[: problem.size]
    assert np.linalg.norm(h) > 0.1
    fisher = problem.fishers()["exact"] + 1e-2 * np.eye(len(h))
    v = np.linalg.solve(fisher, 0.1 * h / np.linalg.norm(h))
    np.testing.assert_allclose(np.ravel(first.forward.logits), -0.5 * v, atol=1e-12)
    np.testing.assert_allclose(np.ravel(second.forward.logits), -0.5 * 1.9 * v, atol=1e-12)
    assert float(first.log_z) == pytest.approx(-np.clip(gradient[-1], -0.01, 0.01))
    assert isinstance(first, Flow)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("rule", [Euclidean, Adam, Natural])
@pytest.mark.parametrize("name", ["rate", "backward_rate", "log_z_rate"])
def test_rates_must_be_finite_and_not_negative(rule, name, value):
    with pytest.raises(ValueError, match=f"^{name} must be zero or positive and finite, got"):
        rule(**{name: value})


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("rule", [Natural, SampleSpace])
def test_damping_must_be_positive(rule, value):
    with pytest.raises(ValueError, match="damping must be positive and finite"):
        rule(damping=value)


def test_only_the_pseudo_inverse_goes_without_damping():
    assert Natural(solver=BlockPseudoinverse(), damping=0.0).damping == 0
    with pytest.raises(ValueError, match="takes damping=0"):
        Natural(solver=BlockPseudoinverse())


def test_a_table_in_sample_space_needs_an_enumerated_environment(problem):
    def gram(_, flow, batch):
        return SampleSpace().context(oracles.WORLDS["grid"], flow, batch)["fisher"].gram()

    with pytest.raises(ValueError, match=r"a table in sample space needs every state"):
        problem.run(gram)


# Schedules.


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Cosine(0.3, 8, 0.06), optax.cosine_decay_schedule(0.3, 8, 0.2)),
        (Linear(0.3, 8, 0.06), optax.linear_schedule(0.3, 0.06, 8)),
    ],
    ids=["cosine", "linear"],
)
def test_schedules_are_those_of_optax_and_so_are_the_steps(ours, theirs):
    steps = range(11)
    np.testing.assert_allclose([ours(k) for k in steps], [theirs(k) for k in steps], rtol=1e-6)
    params = Flow(Tabular(jnp.ones((2, 3))), Tabular(jnp.ones((3, 3))), jnp.array(1.0))

    def walk(rate):
        transform, now = Adam(rate, log_z_rate=rate).transform(), params
        state = transform.init(now)
        for _ in steps:
            gradient = jax.tree.map(lambda x: x**2 - 0.3, now)
            moved, state = transform.update(gradient, state, now, step=jnp.array(0))
            now = eqx.apply_updates(now, moved)
        return np.concatenate([np.ravel(x) for x in jax.tree.leaves(now)])

    np.testing.assert_allclose(walk(ours), walk(theirs), rtol=1e-6)


@pytest.mark.parametrize("rule", [Natural, SampleSpace], ids=lambda rule: rule.__name__)
@float64
def test_a_damping_may_follow_a_schedule(problem, rule):
    """After so many updates it is that of the schedule."""
    schedule = Linear(2.0, 10, 0.5)

    def steps(space, flow, batch):
        def step(damping, number):
            made = rule(damping=damping)
            transform, params = made.transform(), eqx.filter(flow, eqx.is_inexact_array)
            context = made.context(space, flow, batch) | {"step": number}
            moved = transform.update(batch.gradient(), transform.init(params), params, **context)
            return moved[0].forward.logits

        return step(schedule, 4), step(1.4, 0), step(2.0, 0)

    scheduled, expected, first = problem.run(steps)
    np.testing.assert_allclose(scheduled, expected, rtol=1e-6)
    assert np.abs(np.asarray(scheduled) - np.asarray(first)).max() > 1e-3


def test_bad_schedules_are_refused():
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        Cosine(0.1, 0)
    with pytest.raises(ValueError, match="start must be zero or positive and finite, got -1"):
        Linear(-1.0, 5)
