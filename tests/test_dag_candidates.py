"""Local sums over candidates, root partitions and their graphs: against all acyclic graphs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dag_oracles import all_dags
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import float64
from scipy.special import logsumexp
from test_dag_scores import continuous
from test_dag_wide import a_target

from natgfn import NatgfnError
from natgfn.check import check_environment
from natgfn.dag import BDeu, BGe, Data, Prior, exact_posterior, load, log_weights
from natgfn.dag.candidates import Candidates, Weights, usual_number
from natgfn.envs import Partition, Partitions
from natgfn.statespace import enumerate_states


def covered(found: Candidates, graphs: np.ndarray) -> np.ndarray:
    """Which graphs have no two parents of a child besides its candidates."""
    besides = [
        graphs[:, others, child].sum(axis=1) <= 1 for child, others in enumerate(found.env.others)
    ]
    return np.all(besides, axis=0)


def brute(found: Candidates) -> tuple[np.ndarray, np.ndarray]:
    """All covered graphs, and their log-weights by definition."""
    graphs = all_dags(found.weights.size)
    graphs = graphs[covered(found, graphs)]
    local = [found.weights.local(j, graphs[:, :, j] > 0) for j in range(found.weights.size)]
    return graphs, np.sum(local, axis=0)


def layers_of(graph: np.ndarray) -> tuple[int, ...]:
    """The length of the longest path to each vertex."""
    depth = np.zeros(len(graph), int)
    for _ in graph:
        depth = np.max(np.where(graph > 0, depth[:, None] + 1, 0), axis=0)
    return tuple(depth.tolist())


@given(st.integers(0, 10**6), st.integers(1, 4))
@settings(max_examples=20)
def test_tables_are_the_weights_of_sets(seed: int, number: int):
    weights = Weights.of(*a_target(seed))
    table = log_weights(*a_target(seed))
    sets = np.arange(32)[:, None] >> np.arange(5) & 1 == 1
    found = Candidates.of(weights, number)
    for child in range(5):
        np.testing.assert_allclose(weights.local(child, sets), table[child], atol=1e-8)
        inside = found.env.candidates[child]
        for slot, other in enumerate([None, *found.env.others[child]]):
            bits = sum((np.arange(2**number) >> k & 1) << i for k, i in enumerate(inside))
            bits = bits | (0 if other is None else 1 << other)
            np.testing.assert_allclose(
                found.env.log_weights[child, slot], table[child, bits], atol=1e-8
            )


def levels(rows: int, size: int, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2, (rows, size))
    values[:, 1] ^= values[:, 0]
    values[:, -1] |= values[:, 1]
    return Data(tuple(f"X{i}" for i in range(size)), values, discrete=True)


CASES = {
    "all": (lambda: (continuous(30, 4), BGe(), Prior()), 3),
    "two": (lambda: (continuous(30, 4, 1), BGe(), Prior(edge_penalty=0.3)), 2),
    "one": (lambda: (levels(40, 4), BDeu(), Prior(), 0.7), 1),
    "constrained": (
        lambda: (
            continuous(30, 4, 2),
            BGe(),
            Prior(max_parents=2, require=[("X0", "X2")], forbid=[("X3", "X1"), ("X3", "X0")]),
        ),
        2,
    ),
    "tight": (
        lambda: (
            continuous(30, 4, 3),
            BGe(),
            Prior(max_parents=1, require=[("X0", "X2")], log_odds={("X1", "X3"): 2.0}),
        ),
        1,
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Candidates:
    target, number = CASES[request.param]
    return Candidates.of(Weights.of(*target()), number)


@float64
def test_partitions_are_those_of_all_covered_graphs_with_their_weight(case: Candidates):
    env = case.env
    space = enumerate_states(env)
    graphs, logs = brute(case)
    logs = logs[allowed := logs > -np.inf]
    wanted: dict[tuple[int, ...], list[float]] = {}
    for graph, log in zip(graphs[allowed], logs, strict=True):
        wanted.setdefault(layers_of(graph), []).append(log)
    found = dict(zip(map(tuple, space.terminals.layer.tolist()), space.log_rewards, strict=True))
    assert found.keys() == wanted.keys()
    for layer, some in wanted.items():
        assert found[layer] + env.log_total == pytest.approx(logsumexp(some), abs=1e-9)


def test_float32_is_good_to_a_thousandth(case: Candidates):
    env = case.env
    space = enumerate_states(env)
    _, logs = brute(case)
    assert logsumexp(space.log_rewards) + env.log_total == pytest.approx(logsumexp(logs), abs=1e-3)


def test_the_environment_keeps_its_promises(case: Candidates):
    findings = check_environment(case.env)
    assert len(findings) == 13
    assert all(finding.ok is not False for finding in findings), findings


def test_rewards_come_factor_by_factor(case: Candidates):
    env = case.env
    state, total = env.init(), 0.0
    assert float(env.log_partial(state)) == 0
    while not bool(env.is_terminal(state)):
        mask = np.flatnonzero(env.forward_mask(state))
        gained = 0.0 if mask[-1] == env.size else float(env.sums(state).meeting[mask[-1]])
        state, total = env.step(state, int(mask[-1])), total + gained
        assert float(env.log_partial(state)) == pytest.approx(total, abs=1e-4)
    assert float(env.log_reward(state)) == pytest.approx(total, abs=1e-4)


def test_sums_keep_their_digits_where_they_are_small():
    """A last layer that hardly matters, in float32: two logarithms of hundreds, 1e-6 apart."""
    table = np.zeros((3, 1, 4))
    table[2, 0] = [0.0, 300.0, 286.0, 0.0]  # of {}, {0}, {1}, {0, 1}
    env = Partitions(table, np.array([[1, 2], [0, 2], [0, 1]]))
    state = Partition(jnp.array([0, 1, -1], jnp.int8), jnp.array(2, jnp.int8))
    found = float(jax.jit(lambda at: env.sums(at).meeting[2])(state))
    assert found == pytest.approx(-14 - np.log1p(np.exp(-14.0)), abs=1e-4)


def test_draws_are_the_posterior_of_a_partition(case: Candidates):
    graphs, logs = brute(case)
    graphs, logs = graphs[logs > -np.inf], logs[logs > -np.inf]
    layers = np.array([layers_of(graph) for graph in graphs])
    partitions, times = np.unique(layers, axis=0, return_counts=True)
    common = partitions[np.argmax(times)]
    inside = (layers == common).all(axis=1)
    probabilities = np.exp(logs[inside] - logsumexp(logs[inside]))
    count = 20_000
    drawn, found = case.draw(np.tile(common, (count, 1)), np.random.default_rng(0))
    place = {graph.astype(np.int8).tobytes(): n for n, graph in enumerate(graphs[inside])}
    number = np.array([place[graph.tobytes()] for graph in drawn])
    np.testing.assert_allclose(found, logs[inside][number], atol=1e-8)
    seen = np.bincount(number, minlength=len(probabilities))
    expected = count * probabilities
    big = expected > 5
    assert np.sum((seen - expected)[big] ** 2 / expected[big]) < big.sum() + 5 * np.sqrt(
        2 * big.sum() + 1
    )


def test_what_is_missed_is_what_all_graphs_have_more():
    """One candidate of three, so that a child may miss two or three parents."""
    found = Candidates.of(Weights.of(continuous(12, 4, 5), BGe(), Prior()), 1)
    graphs, logs = brute(found)
    everything = all_dags(4)
    besides = [everything[:, found.env.others[j], j].sum(axis=1) for j in range(4)]
    over = np.stack(besides, axis=1)
    once = ((over == 2).sum(axis=1) == 1) & ((over > 2).sum(axis=1) == 0)
    extra = everything[once]
    weight = np.sum([found.weights.local(j, extra[:, :, j] > 0) for j in range(4)], axis=0)
    expected = np.exp(logsumexp(weight) - logsumexp(logs))
    rng = np.random.default_rng(1)
    drawn = graphs[rng.choice(len(graphs), 20_000, p=np.exp(logs - logsumexp(logs)))]
    assert expected > 1e-3
    assert found.missed(drawn.astype(np.int8)).weight == pytest.approx(expected, rel=0.2)


def test_candidates_are_the_markov_blanket_and_required_parents():
    """0 -> 1 -> 2 <- 3, and four variables that have nothing to do with them."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(400, 8))
    values[:, 1] += values[:, 0]
    values[:, 2] += values[:, 1] + values[:, 3]
    data = load(values)
    assert Candidates.of(Weights.of(data, BGe(), Prior()), 3).env.candidates[1].tolist() == [
        0,
        2,
        3,
    ]
    needs = Prior(require=[("X7", "X1"), ("X6", "X1")])
    chosen = Candidates.of(Weights.of(data, BGe(), needs), 3).env.candidates[1].tolist()
    assert set(chosen) > {6, 7}
    with pytest.raises(NatgfnError, match="2 required parents"):
        Candidates.of(Weights.of(data, BGe(), needs), 1)


def test_sixty_four_variables_and_no_more():
    data = load(np.random.default_rng(0).normal(size=(80, 64)))
    weights = Weights.of(data, BGe(), Prior())
    found = Candidates.of(weights, 2)
    parents = np.zeros((1, 64), bool)
    parents[0, [62, 63]] = True
    chosen = np.array([62, 63])
    table = weights.table(0, chosen, np.arange(1, 62))
    assert weights.local(0, parents)[0] == pytest.approx(table[0, 3], abs=1e-8)
    assert found.env.log_weights.shape == (64, 62, 4)
    with pytest.raises(NatgfnError, match="at most 64 variables, got 65"):
        Weights.of(load(np.random.default_rng(0).normal(size=(80, 65))), BGe(), Prior())


def test_all_candidates_where_they_fit():
    assert [usual_number(d) for d in (2, 12, 18, 20, 37, 64)] == [1, 11, 17, 15, 12, 10]


@float64
def test_sums_over_all_partitions_are_those_of_the_exact_posterior():
    data = continuous(60, 6, 3)
    found = Candidates.of(Weights.of(data, BGe(), Prior()))
    space = enumerate_states(found.env, max_states=2**20)
    log_z = logsumexp(space.log_rewards) + found.env.log_total
    assert log_z == pytest.approx(exact_posterior(data).log_z, abs=1e-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w, c: (w[:, :, :2], c), "expected log_weights of shape"),
        (lambda w, c: (w * np.nan, c), "numbers or minus infinity"),
        (lambda w, c: (w, np.zeros_like(c)), "candidates of vertex 0"),
        (lambda w, c: (np.where(np.arange(4) == 1, -np.inf, w), c), "without any of those"),
    ],
)
def test_weights_that_make_no_sense(change, message: str):
    weights, candidates = np.zeros((3, 1, 4)), np.array([[1, 2], [0, 2], [0, 1]])
    with pytest.raises(ValueError, match=message):
        Partitions(*change(weights, candidates))


def test_the_head_start_keeps_copies_of_a_variable_out_of_one_layer():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 400))
    values = np.stack([one, one + 0.1 * rng.normal(size=400), other], axis=1)
    weights = Weights.of(load(values), BGe(), Prior())
    env = Candidates.of(weights).env
    alone = Partition(jnp.array([-1, -1, 0], jnp.int8), jnp.array(0, jnp.int8))
    beside = Partition(jnp.array([0, -1, -1], jnp.int8), jnp.array(0, jnp.int8))
    # Either may come first, and the other then wait: by as much as it needs its parent.
    np.testing.assert_allclose(env.head_start(alone)[:2], -20.0, atol=0.5)
    found = env.head_start(beside)
    needs = weights.local(1, np.array([[True, False, False], [False, False, False]]))
    np.testing.assert_allclose(found[1], needs[1] - needs[0], rtol=0.01)
    assert found[1] < -200
    assert found[2] > -10


@float64
@pytest.mark.parametrize("number", [1, 4])
def test_what_a_policy_sees_is_exact_where_others_raise_all_sets_alike(number: int):
    rng, size = np.random.default_rng(number), 5
    chosen = [rng.permutation(np.delete(np.arange(size), j))[:number] for j in range(size)]
    weights = rng.normal(size=(size, 1, 2**number))
    raised = np.concatenate([np.zeros((size, 1)), rng.normal(size=(size, size - 1 - number))], 1)
    env = Partitions(weights + raised[..., None], np.sort(chosen, axis=1))
    see = jax.jit(lambda state: (*env.seen(state), env.sums(state), env.local(*later(state))))

    def later(state: Partition) -> tuple[jax.Array, jax.Array]:
        """The predecessors of a vertex in the layer after the growing one."""
        sets = (state.layer >= 0, state.layer == state.growing)
        return tuple(jnp.broadcast_to(some, (size, size)) for some in sets)

    state = env.init()
    while not bool(env.is_terminal(state)):
        now, after, exact_now, exact_after = np.array(see(state))[..., state.layer < 0]
        np.testing.assert_allclose(now, exact_now, atol=1e-6)
        if bool(jnp.any(state.layer == state.growing)):
            np.testing.assert_allclose(after, exact_after, atol=1e-6)
        state = env.step(state, int(rng.choice(np.flatnonzero(env.forward_mask(state)))))
