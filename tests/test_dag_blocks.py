"""Block surrogates of the Fisher of a policy over graphs, by definition; and their experiment."""

import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dag_oracles import random_weights
from jax.flatten_util import ravel_pytree
from oracles import float64

from natgfn.algorithm import of_seed
from natgfn.certify import coupling, relative_error
from natgfn.envs import Dags
from natgfn.fisher import Fisher, Occupancy
from natgfn.policies import Network
from natgfn.sampling import OnPolicy, rollout
from natgfn.training import numbers
from paper.blocks import WHOLE, surrogates
from paper.experiments import dag_blocks, reproduce
from paper.experiments.continuation import WARM_UP, Case, Continuation, Scale

NAMES = (
    WHOLE,
    "layerwise",
    "output head",
    "child-node heads",
    "child-node outputs",
    "factorised Bernoulli",
)
ENV = Dags(random_weights(3, 1.0, 0))
STOP = ENV.num_actions - 1


def drawn(policy, num, seed):
    """Trajectories of a policy."""
    draw = jax.jit(lambda key: rollout(ENV, policy, OnPolicy(), num, key=key))
    return draw(jax.random.key(seed))


@functools.cache
def small(depth=2):
    """A network in float64, and visits of its own with random weights."""
    policy = Network(4, depth)(ENV, key=jax.random.key(1))
    policy = jax.tree.map(lambda x: 3 * x.astype(float) if eqx.is_inexact_array(x) else x, policy)
    paths = drawn(policy, 6, 2)
    states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), paths.before)
    weights = np.random.default_rng(0).random(paths.live.size) * np.ravel(paths.live)
    return policy, Occupancy(states, jnp.asarray(weights))


@functools.cache
def surrogates_of_small(depth=2):
    return surrogates(ENV, *small(depth))


@functools.cache
def child_of(action):
    """The vertex that an action adds an edge into, by looking at the graph; None for STOP."""
    edges = np.asarray(ENV.step(ENV.init(), action).edges)
    return int(np.argwhere(edges)[0, 1]) if edges.any() else None


def labels(policy):
    """Of each parameter, in the order of `surrogates`: its number, its layer and its action."""
    flat, unravel = ravel_pytree(eqx.filter(policy, eqx.is_inexact_array))
    number = unravel(jnp.arange(flat.size, dtype=float))
    layers, found = [number.first.linear, *number.rest], []
    for k, layer in enumerate(layers[:-1]):
        found += [(n, k, None) for x in (layer.weight, layer.bias) for n in np.ravel(x)]
    for action, (weights, bias) in enumerate(zip(layers[-1].weight, layers[-1].bias, strict=True)):
        found += [(n, len(layers) - 1, action) for n in [*np.asarray(weights), bias]]
    return [(int(n), k, action) for n, k, action in found]


def of_states(policy, occupancy):
    """The weight, the probabilities and the slopes of the logits, one state after the other."""
    flat, unravel = ravel_pytree(eqx.filter(policy, eqx.is_inexact_array))
    place = np.array([n for n, _, _ in labels(policy)])

    def look(state):
        logits = lambda x: eqx.combine(unravel(x), policy)(state)  # noqa: E731
        return ENV.forward_mask(state), logits(flat), jax.jacrev(logits)(flat)

    mask, logits, slopes = map(np.asarray, jax.jit(jax.vmap(look))(occupancy.states))
    odds = np.exp(logits) * mask
    live = np.asarray(occupancy.weights) > 0
    probs = odds[live] / odds[live].sum(axis=1, keepdims=True)
    weights = np.asarray(occupancy.weights)[live]
    return list(zip(weights, probs, slopes[live][..., place], strict=True))


def by_definition(name, label, states):
    """Entry by entry."""
    total = np.zeros((len(label), len(label)))
    for weight, pi, slopes in states:
        c = np.diag(pi) - np.outer(pi, pi)
        for a in range(STOP + 1):
            for b in range(STOP + 1):
                if name == "child-node outputs" and child_of(a) != child_of(b):
                    c[a, b] = 0
                if name == "factorised Bernoulli":
                    c[a, b] = pi[a] * (1 - pi[a]) if a == b else 0
        total += weight * slopes.T @ c @ slopes
    last = label[-1][1]
    for i, (_, k, a) in enumerate(label):
        for j, (_, m, b) in enumerate(label):
            apart = {
                "layerwise": k != m,
                "output head": (k == last) != (m == last),
                "child-node heads": (k == last) != (m == last)
                or (k == m == last and child_of(a) != child_of(b)),
            }
            if apart.get(name, False):
                total[i, j] = 0
    return total


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.slow), 2])
@float64
def test_every_surrogate_is_its_definition(depth):
    policy, occupancy = small(depth)
    found, states = surrogates_of_small(depth), of_states(policy, occupancy)
    assert tuple(found) == NAMES
    for name, matrix in found.items():
        expected = by_definition(name, labels(policy), states)
        np.testing.assert_allclose(matrix, expected, atol=1e-12, err_msg=name)
        assert np.linalg.eigvalsh(expected).min() > -1e-12
    # With one hidden layer, the output head is one of two layers; else all differ.
    several = [x for name, x in found.items() if depth == 2 or name != "layerwise"]
    for i, x in enumerate(several):
        assert all(np.abs(x - y).max() > 1e-3 for y in several[:i])


@float64
def test_the_whole_is_the_fisher_of_the_library():
    policy, occupancy = small()
    place = [n for n, _, _ in labels(policy)]
    matrix = jax.jit(lambda: Fisher(ENV, policy, occupancy).as_matrix())()
    expected = np.asarray(matrix)[np.ix_(place, place)]
    found = surrogates_of_small()[WHOLE]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@float64
def test_a_child_is_its_parent_exactly_and_a_coin_for_itself():
    r"""The block of a child in $C$, as the docstring of `paper.blocks` has it."""
    pi = np.random.default_rng(3).dirichlet(np.ones(7))
    for child in range(3):
        mine = pi[[child_of(a) == child for a in range(7)]]
        m, given = mine.sum(), mine / mine.sum()
        parent = m * (np.diag(given) - np.outer(given, given))
        coin = m * (1 - m) * np.outer(given, given)
        np.testing.assert_allclose(parent + coin, np.diag(mine) - np.outer(mine, mine), atol=1e-15)


@float64
def test_one_spectrum_has_both_errors():
    """Beside the library's own, each from a spectrum of its own, and the paper's bound."""
    found = surrogates_of_small()
    for name in NAMES[1:]:
        for damping in (1e-2, 1e-1):
            error = dag_blocks.errors(np.asarray(found[WHOLE]), np.asarray(found[name]), damping)
            assert error["rho"] == pytest.approx(relative_error(found[WHOLE], found[name], damping))
            assert error["gamma"] == pytest.approx(coupling(found[WHOLE], found[name], damping))


def test_visits_weigh_what_the_trajectory_fisher_counts():
    """By depth: a trajectory visits depth t if it is longer than t."""
    policy = Network(4, 1)(ENV, key=jax.random.key(1))
    found = dag_blocks.visits(ENV, policy, 20_000, jax.random.key(0))
    depth = np.asarray(found.states.edges.sum(axis=(1, 2)))
    paths = drawn(policy, 20_000, 9)
    expected = np.asarray(paths.live.mean(axis=1))
    shares = np.bincount(depth, found.weights, expected.size) / depth.size
    np.testing.assert_allclose(shares, expected, atol=0.05)
    assert expected[-1] > 0.2


@pytest.mark.slow
def test_fresh_states_are_the_policys_and_replayed_ones_the_buffers(tmp_path):
    case = Case("", 3, ("a", "b", "c"), ENV.log_weights, np.zeros((3, 3), int))
    study = Continuation(Scale(batch=8), tmp_path, ())
    setup = study.setup("MLP", case, ENV, WARM_UP, 10)
    state = of_seed(setup.start(), 0)
    paths = state.memory
    stopped = paths._replace(
        actions=jnp.full_like(paths.actions, STOP),
        lengths=jnp.ones_like(paths.lengths),
        seen=jnp.array(len(paths.lengths)),
    )
    state = eqx.tree_at(lambda s: s.memory, state, stopped)
    found = dag_blocks.sampled(setup.algorithm(), state, 8, jax.random.key(0))
    depths = {law: x.states.edges.sum(axis=(1, 2)) for law, x in found.items()}
    assert depths["replayed"].max() == 0 < depths["fresh"].max()
    for occupancy in found.values():
        assert occupancy.weights.sum() == pytest.approx(1)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    page = reproduce("dag-blocks", scale="smoke", out=out)
    return out, page.read_text(), json.loads((out / "dag-blocks.smoke.json").read_text())


@pytest.mark.slow
def test_the_page_is_made_from_the_json_alone(smoke):
    out, text, results = smoke
    assert dag_blocks.page(numbers(results)) == text
    assert [point["updates"] for point in results["points"]] == [0, 10, 20]
    assert all(f"| {name} |" in text for name in NAMES)
    assert (out / "dag-blocks.smoke.png").stat().st_size > 10_000


@pytest.mark.slow
def test_numbers_of_the_page_keep_the_papers_inequalities(smoke):
    for point in smoke[2]["points"]:
        high, low = point["dampings"]
        assert high["damping"] < low["damping"]
        assert 0 < low["half"] < high["half"] <= 1
        assert low["rank"] < high["rank"] < point["parameters"]
        for found in point["dampings"]:
            blocks = found["surrogates"]
            assert blocks[WHOLE]["gamma"] == blocks[WHOLE]["rho"] == 0
            for name in NAMES[1:]:
                gamma, rho = blocks[name]["gamma"], blocks[name]["rho"]
                assert rho > 0
                if gamma < 1:
                    assert rho <= gamma / (1 - gamma) * (1 + 1e-9)
                # F is at most as many times B as there are blocks.
                most = {"layerwise": 2, "output head": 1, "child-node heads": 5}
                assert gamma <= most.get(name, np.inf)
            for law in ("fresh", "replayed"):
                assert blocks[WHOLE][law] > found["half"]
        for name in NAMES[1:]:
            assert low["surrogates"][name]["gamma"] < high["surrogates"][name]["gamma"]
