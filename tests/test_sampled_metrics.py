"""Metrics from samples, against sums over all trajectories."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from oracles import SHORTCUTS, ZERO_REWARD, Dag, World, explore, log_softmax

import natgfn as ng
from natgfn.envs.grid import GridState
from natgfn.metrics import draw, draw_back, draws, eubo, log_terminal_law, sampled_metrics
from natgfn.metrics.sampled import _correlations
from natgfn.policies import (
    AbstractPolicy,
    Flow,
    Network,
    Tabular,
    Uniform,
    UniformPolicy,
    backward_table,
    forward_table,
)
from natgfn.statespace import constructive_flow, enumerate_states, occupancy

KEY = jax.random.key(7)


class Known(ng.envs.Hypergrid):
    """A grid that says all it can: its corners are modes, and count their neighbours."""

    side: int = 4
    floor: float = 0.3
    outer_bound: bool = False

    num_modes = 4

    def finds(self, state):
        corners = (self.side - 1) * jnp.array([[0, 0], [0, 1], [1, 0], [1, 1]])
        return jnp.sum(jnp.abs(corners - state.cell), axis=1) <= 1

    def distance(self, one, other):
        return jnp.sum(jnp.abs(one.cell - other.cell)).astype(float)

    def test_set(self, num):
        cells = np.random.default_rng(0).permutation(np.asarray(self.objects().cell))[:num]
        return GridState(cells.astype(np.int64), np.ones(len(cells), bool))


class Tree(ng.envs.Triangles):
    nodes: int = 4
    beta: float = 0.7

    def test_set(self, num):
        objects = self.objects()
        return jax.tree.map(lambda x: x[::-1][:num], objects)


ENVS = {"grid": Known(), "tree": Tree(nodes=3), "walls": ng.envs.DeceptiveGrid(side=5, floor=0.1)}


class Numbered(AbstractPolicy):
    """A policy of an environment on the numbers of its states."""

    policy: AbstractPolicy
    states: object

    def __call__(self, state):
        return self.policy(jax.tree.map(lambda x: jnp.asarray(x)[state], self.states))


class Case:
    """A random flow on an environment, as it is or enumerated, and sums over all trajectories."""

    def __init__(self, env, enumerated: bool, seed: int = 1):
        world: World = explore(env)
        space = world.space
        keys = jax.random.split(jax.random.key(seed))
        policies = [Network(8)(env, key=k) for k in keys]
        states = jax.tree.map(jnp.asarray, space.states)
        tables = [np.asarray(jax.vmap(policy)(states), np.float64) for policy in policies]
        log_pf = log_softmax(tables[0][: space.num_inner], world.forward_valid)
        log_pb = log_softmax(tables[1], world.backward_valid)
        if enumerated:
            policies = [Numbered(policy, space.states) for policy in policies]
        self.world, self.space, self.enumerated = world, space, enumerated
        self.env = space if enumerated else env
        self.flow = Flow(*policies, jnp.array(0.4))
        self.log_forward = world.sum_taken(log_pf)
        self.log_backward = world.sum_arrived(log_pb)
        self.p, self.pb = np.exp(self.log_forward), np.exp(self.log_backward)
        self.log_w = world.log_rewards + self.log_backward - self.log_forward
        self.q = self.p @ world.ends
        self.target = np.exp(space.log_target)
        self.backwards = (world.ends @ self.target) * self.pb
        """The target's law of trajectories."""

    def objects(self, places):
        """Objects by their place among the terminal states, as states of `env`."""
        if self.enumerated:
            return (self.space.num_inner + places).astype(np.int32)
        return jax.tree.map(lambda x: np.asarray(x)[places], self.space.terminals)


CASES = [("grid", False), ("tree", True)]
LONGER = [case for case in itertools.product(ENVS, (False, True)) if case not in CASES]


@pytest.fixture(
    scope="module",
    params=[*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in LONGER)],
    ids=str,
)
def case(request):
    name, enumerated = request.param
    return Case(ENVS[name], enumerated)


def agrees(found: dict, name: str, exact: float, errors: float = 4) -> bool:
    assert 0 < found[f"{name}_se"] < 0.2
    return abs(found[name] - exact) < errors * found[f"{name}_se"]


def test_draws_estimate_the_sums_over_all_trajectories(case):
    found = sampled_metrics(case.env, case.flow, key=KEY, num=4000)
    lengths = np.array([len(path.actions) for path in case.world.paths])
    assert agrees(found, "elbo", case.p @ case.log_w)
    assert case.p @ np.exp(case.log_w) == pytest.approx(np.exp(case.space.log_z))
    assert agrees(found, "log_z", case.space.log_z)
    assert agrees(found, "mean_log_reward", case.p @ case.world.log_rewards)
    if np.ptp(lengths):
        assert agrees(found, "length", case.p @ lengths)
    else:
        assert (found["length"], found["length_se"]) == (lengths[0], 0)
    relative = np.exp(case.log_w - case.space.log_z)
    share = 1 / (case.p @ relative**2)
    influence = 2 * relative - share * relative**2
    error = share * np.sqrt((case.p @ influence**2 - (case.p @ influence) ** 2) / 4000)
    assert abs(found["effective_share"] - share) < 5 * error
    assert found["learned_log_z"] == pytest.approx(0.4)
    sizes = abs(0.4 - case.log_w)
    for name, level in (("residual_median", 0.5), ("residual_p90", 0.9)):
        assert case.p @ (sizes < found[name] - 1e-4) < level + 0.04
        assert case.p @ (sizes < found[name] + 1e-4) > level - 0.04
    assert found["distinct"] == np.sum(case.q > 0)
    assert all(isinstance(value, float) for value in found.values())


def test_path_kl_is_that_of_trajectories_and_bounds_that_of_objects(case):
    found = sampled_metrics(case.env, case.flow, key=KEY, num=4000)
    known = isinstance(case.env, ng.envs.KnowsLogZ)
    assert ("path_kl" in found) == known
    assert known == (case.enumerated or isinstance(case.env, Known))
    if known:
        exact = case.p @ np.log(case.p / case.backwards)
        assert agrees(found, "path_kl", exact)
        assert found["path_kl_se"] == pytest.approx(found["elbo_se"])
        assert exact > case.q @ np.log(case.q / case.target) - 1e-9


@pytest.mark.slow
def test_eubo_of_exact_samples_is_above_log_z_by_the_divergence(case):
    rng = np.random.default_rng(0)
    exact = case.backwards @ case.log_w
    divergence = case.backwards @ np.log(case.backwards / case.p)
    assert exact == pytest.approx(case.space.log_z + divergence)
    places = rng.choice(len(case.target), size=4000, p=case.target)
    assert agrees(eubo(case.env, case.flow, case.objects(places), key=KEY), "eubo", exact)
    places = rng.integers(len(case.target), size=4000)
    weights = np.exp(case.space.log_rewards)[places]
    weighted = eubo(case.env, case.flow, case.objects(places), weights, key=KEY)
    assert agrees(weighted, "eubo", exact)


@pytest.mark.slow
def test_estimated_terminal_law(case):
    places = np.random.default_rng(0).permutation(len(case.q))
    log_q, log_rewards = log_terminal_law(case.env, case.flow, case.objects(places), 1000, key=KEY)
    np.testing.assert_allclose(log_rewards, case.space.log_rewards[places], rtol=1e-5)
    second = (case.p**2 / case.pb) @ case.world.ends
    error = np.sqrt(np.maximum(second - case.q**2, 0) / 1000)
    assert np.all(abs(np.exp(log_q) - case.q[places]) < 4.5 * error[places] + 1e-5)
    if case.enumerated:
        table = forward_table(case.space, case.flow.forward)
        law = occupancy(case.space, jnp.exp(table))[1]
        np.testing.assert_allclose(law, case.q, rtol=1e-4)


@pytest.mark.parametrize("enumerated", [pytest.param(False, marks=pytest.mark.slow), True])
def test_correlations_on_a_tree_need_one_path(enumerated):
    case = Case(Tree(), enumerated)
    found = sampled_metrics(case.env, case.flow, key=KEY, num=2, paths=1, test=50)
    tested = case.world.env.test_set(50)
    place = {int(x): i for i, x in enumerate(case.space.terminals.edges)}
    places = [place[int(x)] for x in tested.edges]
    log_q, log_rewards = np.log(case.q)[places], case.space.log_rewards[places]
    r = scipy.stats.pearsonr(log_q, log_rewards).statistic
    rank = scipy.stats.spearmanr(log_q, log_rewards).statistic
    assert found["pearson"] == pytest.approx(r, abs=1e-4)
    assert found["spearman"] == pytest.approx(rank, abs=1e-4)
    assert found["pearson_se"] == pytest.approx((1 - r**2) / np.sqrt(47), rel=1e-3)


def test_errors_of_correlations_are_what_they_vary_by():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 100))
    y = 0.75 * x + rng.normal(size=x.shape)
    found = [_correlations(*pair) for pair in zip(x, y, strict=True)]
    for name in ("pearson", "spearman"):
        spread = np.std([f[name] for f in found])
        assert spread == pytest.approx(np.mean([f[f"{name}_se"] for f in found]), rel=0.12)


@pytest.mark.slow
def test_errors_are_what_the_estimates_vary_by():
    case = Case(Known(), enumerated=True)
    keys = jax.random.split(KEY, 200)
    places = np.random.default_rng(0).choice(16, size=(200, 1000), p=case.target)
    found = [
        sampled_metrics(case.env, case.flow, key=key, num=1000, test=4, paths=1)
        | eubo(case.env, case.flow, case.objects(some), key=key)
        for key, some in zip(keys, places, strict=True)
    ]
    exact = {
        "elbo": case.p @ case.log_w,
        "log_z": case.space.log_z,
        "path_kl": case.p @ np.log(case.p / case.backwards),
        "mean_log_reward": case.p @ case.world.log_rewards,
        "length": case.p @ np.array([len(path.actions) for path in case.world.paths]),
        "eubo": case.backwards @ case.log_w,
    }
    for name, value in exact.items():
        z = np.array([(f[name] - value) / f[f"{name}_se"] for f in found])
        assert abs(z.mean()) < 0.3, name
        assert 0.7 < z.var() < 1.4, name


@pytest.mark.parametrize("enumerated", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_best_objects_and_modes(enumerated):
    case = Case(Known(), enumerated)
    found = sampled_metrics(case.env, case.flow, key=KEY, num=30, top=3)
    drawn = draw(case.env, case.flow, 30, key=jax.random.split(KEY)[0])
    _, objects = draws.original(case.env, drawn.objects)
    cells = list(dict.fromkeys(tuple(cell.tolist()) for cell in objects.cell))
    reward = {tuple(c.tolist()): r for c, r in zip(objects.cell, drawn.log_rewards, strict=True)}
    best = sorted(cells, key=lambda cell: -reward[cell])[:3]
    assert 3 < len(cells) == found["distinct"]
    assert found["top_log_reward"] == pytest.approx(np.mean([reward[cell] for cell in best]))
    apart = [abs(a - c) + abs(b - d) for (a, b), (c, d) in itertools.combinations(best, 2)]
    assert found["top_diversity"] == pytest.approx(np.mean(apart))
    modes = itertools.product((0, 3), repeat=2)
    near = [any(abs(a - c) + abs(b - d) <= 1 for c, d in cells) for a, b in modes]
    assert found["modes_drawn"] == sum(near)
    everything = sampled_metrics(case.env, case.flow, key=KEY, num=4000)
    assert (everything["distinct"], everything["modes_drawn"]) == (16, 4)
    assert everything["top_diversity"] == pytest.approx(2 * (2 * 20 / 16) / 2 * 16 / 15)


@pytest.mark.slow
def test_batches_bound_the_memory_and_change_no_law(monkeypatch):
    case = Case(Known(), enumerated=False)
    each = 8 * (9 + 4 * 3)  # 8 states of a path, each with two integers, a boolean and 3 logits
    monkeypatch.setattr(draws, "MOST", 100 * each)
    assert draws._batches(case.env, 4050) == (41, 99)
    found = sampled_metrics(case.env, case.flow, key=KEY, num=4050)
    assert agrees(found, "elbo", case.p @ case.log_w)
    places = np.random.default_rng(0).choice(16, size=150)
    back = draw_back(case.env, case.flow, case.objects(places), key=KEY)
    np.testing.assert_array_equal(back.objects.cell, case.space.terminals.cell[places])
    assert back.log_weights.shape == (150,)
    monkeypatch.setattr(draws, "MOST", 1)
    assert draws._batches(case.env, 5) == (5, 1)


TRACED = []


class Traced(Known):
    def log_reward(self, state):
        TRACED.append(1)
        return super().log_reward(state)

    def distance(self, one, other):
        TRACED.append(1)
        return super().distance(one, other)


def test_other_parameters_do_not_compile_again():
    env = Traced(side=5)
    for seed in range(3):
        forward = Network(8)(env, key=jax.random.key(seed))
        flow = Flow(forward, Uniform().backward(env), jnp.array(float(seed)))
        found = sampled_metrics(env, flow, key=jax.random.key(seed), num=20)
        assert found["distinct"] < 20
        if seed == 0:
            first = len(TRACED)
    assert len(TRACED) == first


def test_an_exact_sampler():
    space = enumerate_states(SHORTCUTS)
    log_pb = backward_table(space, Uniform().backward(space))
    log_flow, log_pf = constructive_flow(space, log_pb, jnp.asarray(space.log_rewards))
    flow = Flow(Tabular(log_pf), Uniform().backward(space), log_flow[0])
    found = sampled_metrics(space, flow, key=KEY, num=50)
    for name in ("path_kl", "path_kl_se", "elbo_se", "log_z_se", "residual_p90"):
        assert found[name] == pytest.approx(0, abs=1e-5), name
    assert found["log_z"] == pytest.approx(space.log_z, abs=1e-5)
    assert found["effective_share"] == pytest.approx(1)


def uniform(env) -> Flow:
    return Flow(UniformPolicy(env.num_actions), Uniform().backward(env), jnp.array(0.0))


@pytest.mark.parametrize("enumerated", [False, True])
def test_objects_without_reward(enumerated):
    env = enumerate_states(ZERO_REWARD) if enumerated else ZERO_REWARD
    found = sampled_metrics(env, uniform(env), key=KEY, num=4000)
    assert found["elbo"] == found["mean_log_reward"] == found["top_log_reward"] == -np.inf
    assert agrees(found, "log_z", np.log(2.5))
    assert found["residual_p90"] == np.inf > found["residual_median"]
    assert not {"elbo_se", "path_kl_se", "mean_log_reward_se"} & set(found)
    assert not enumerated or found["path_kl"] == np.inf
    assert not np.isnan(list(found.values())).any()


def test_no_reward_at_all():
    env = Dag(ZERO_REWARD.table, (0.0, 0.0, 0.0), 4)
    found = sampled_metrics(env, uniform(env), key=KEY, num=10)
    assert found["elbo"] == found["log_z"] == -np.inf
    assert not {"log_z_se", "effective_share"} & set(found)


def test_a_policy_that_is_no_law_says_nothing_of_objects():
    for case in (Case(Known(), False), Case(Tree(), True)):
        broken = jax.tree.map(
            lambda x: x * jnp.nan if eqx.is_inexact_array(x) else x, case.flow.forward
        )
        flow = Flow(broken, case.flow.backward, case.flow.log_z)
        found = sampled_metrics(case.env, flow, key=KEY, num=10)
        assert not np.isfinite([v for name, v in found.items() if name != "learned_log_z"]).any()
        assert {"elbo", "log_z", "residual_median"} <= set(found)
        assert not {"length", "mean_log_reward", "distinct", "modes_drawn", "pearson"} & set(found)


def test_numbers_that_are_not_defined_are_left_out():
    env = Known(floor=1e9)  # the rewards are equal, in single precision
    found = sampled_metrics(env, uniform(env), key=KEY, num=10)
    assert "top_diversity" in found
    assert not {"pearson", "pearson_se", "spearman", "spearman_se"} & set(found)
    assert not {"pearson", "spearman"} & set(
        sampled_metrics(Known(), uniform(env), key=KEY, test=3)
    )
    alone = sampled_metrics(Known(), uniform(env), key=KEY, num=10, top=1)
    assert "top_diversity" not in alone
    assert _correlations(np.array([1.0, -np.inf, 2, 3]), np.arange(4.0)) == {}
    spoiled = _correlations(np.array([1.0, np.nan, 2, 3]), np.arange(4.0))
    assert np.isnan(list(spoiled.values())).all()


def test_bad_arguments():
    case = Case(Known(), enumerated=True)
    for name, value in (("num", 1), ("paths", 0), ("top", 0)):
        with pytest.raises(ValueError, match=f"{name} must be at least"):
            sampled_metrics(case.env, case.flow, key=KEY, **{name: value})
    with pytest.raises(ValueError, match="two at least"):
        eubo(case.env, case.flow, case.objects(np.arange(1)), key=KEY)
    for weights in (np.zeros(4), -np.ones(4), np.full(4, np.nan)):
        with pytest.raises(ValueError, match="weights must be"):
            eubo(case.env, case.flow, case.objects(np.arange(4)), weights, key=KEY)
    with pytest.raises(ValueError, match="not among those enumerated"):
        draws.numbered(case.env, GridState(np.full((1, 2), 9), np.ones(1, bool)))
