"""Solvers for networks, against dense linear algebra and plain NumPy."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from oracles import explore, float64

import natgfn as ng
from benchmarks.measure import Timer
from natgfn.algorithm import advance
from natgfn.fisher import Fisher, Occupancy
from natgfn.policies import MLP, Network, Tabular
from natgfn.solvers import KFAC, ConjugateGradients, Dense, Diagonal
from natgfn.solvers.kfac import covariance_root, matrices, second_moment, signals, with_matrices
from natgfn.solvers.live import on_live_rows
from natgfn.statespace import enumerate_states
from natgfn.training import setup_from

LAM = 1e-2


@functools.cache
def enumerated(name):
    if name == "deceptive":
        return enumerate_states(ng.envs.DeceptiveGrid(side=5))
    return explore(oracles.WORLDS[name]).space


@functools.cache
def network(name, width=4, depth=2):
    """A network whose policy is not uniform, in float64."""
    policy = Network(width, depth)(enumerated(name), key=jax.random.key(0))
    return jax.tree.map(
        lambda x: 2.5 * x.astype(jnp.float64) if eqx.is_inexact_array(x) else x, policy
    )


def visits(name, n, seed=0, live=1.0, scores=False):
    """Inner states with weights, of which a part is padding."""
    rng, space = np.random.default_rng(seed), enumerated(name)
    states = rng.integers(0, space.num_inner, n)
    weights = np.where(rng.random(n) < live, rng.uniform(0.1, 1, n), 0.0)
    actions = None
    if scores:
        valid = np.asarray(space.child)[states] >= 0
        actions = jnp.asarray([rng.choice(np.flatnonzero(row)) for row in valid])
    return Occupancy(jnp.asarray(states), jnp.asarray(weights), actions)


def fisher_of(name, occupancy, **shape):
    return Fisher(enumerated(name), network(name, **shape), occupancy)


def random_like(policy, seed=0):
    flat, unravel = ravel_pytree(eqx.filter(policy, eqx.is_inexact_array))
    return unravel(jnp.asarray(np.random.default_rng(seed).normal(size=flat.size), flat.dtype))


def solve(solver, fisher, h, damping, state=None):
    """Compiled once for each solver and shape, also from one solve to the next."""
    return _solve(solver, fisher, h, damping, solver.init(h) if state is None else state)


@eqx.filter_jit
def _solve(solver, fisher, h, damping, state):
    return solver.solve(fisher, h, damping, state)


@eqx.filter_jit
def _matrix(fisher):
    return fisher.as_matrix()


def dense(fisher):
    return np.asarray(_matrix(fisher))


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


# Conjugate gradients.


@pytest.mark.parametrize(("name", "scores"), [("deceptive", False), ("tree", True)])
@float64
def test_conjugate_gradients_solve_the_damped_system(name, scores):
    fisher = fisher_of(name, visits(name, 40, live=0.3, scores=scores))
    h = random_like(fisher.policy)
    expected = flat(solve(Dense(), fisher, h, LAM)[0])
    plain = ConjugateGradients(iterations=300, tolerance=1e-12)
    for solver in (plain, eqx.tree_at(lambda s: s.preconditioner, plain, True)):
        found, state = solve(solver, fisher, h, LAM)
        np.testing.assert_allclose(flat(found), expected, rtol=1e-6, atol=1e-9)
        assert 5 < state.iterations < 300
        assert state.residual < 1e-11


@float64
def test_the_residual_is_the_true_one_and_the_iterations_are_counted():
    fisher = fisher_of("deceptive", visits("deceptive", 40))
    h = random_like(fisher.policy)
    matrix = dense(fisher) + LAM * np.eye(flat(h).size)
    residuals = []
    for iterations in (1, 16):
        found, state = solve(ConjugateGradients(iterations, tolerance=0.0), fisher, h, LAM)
        expected = np.linalg.norm(matrix @ flat(found) - flat(h)) / np.linalg.norm(flat(h))
        assert state.residual == pytest.approx(expected, rel=1e-9)
        assert state.iterations == iterations
        residuals.append(expected)
        if iterations == 1:  # the step along h that minimises the quadratic
            g = flat(h)
            np.testing.assert_allclose(flat(found), (g @ g) / (g @ matrix @ g) * g, rtol=1e-10)
    assert residuals[1] < 0.1 * residuals[0]


@float64
def test_a_warm_start_from_the_solution_has_nothing_to_do():
    fisher = fisher_of("deceptive", visits("deceptive", 40))
    h = random_like(fisher.policy)
    solver = ConjugateGradients(iterations=300, tolerance=1e-8, warm_start=True)
    first, state = solve(solver, fisher, h, LAM)
    again, warm = solve(solver, fisher, h, LAM, state)
    assert warm.iterations <= 1 < state.iterations
    np.testing.assert_allclose(flat(again), flat(first), rtol=1e-6)


@float64
def test_the_preconditioner_is_the_mean_diagonal_of_each_array():
    """It changes the way to the solution, not the solution."""
    fisher = fisher_of("deceptive", visits("deceptive", 40))
    h = random_like(fisher.policy)
    plain = ConjugateGradients(iterations=500, tolerance=1e-8)
    solver = ConjugateGradients(500, 1e-8, preconditioner=True, probes=4000, refresh=3)
    expected, without = solve(plain, fisher, h, LAM)
    found, state = solve(solver, fisher, h, LAM)
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-4, atol=1e-6)
    diagonal = np.diag(dense(fisher))
    sizes = [x.size for x in jax.tree.leaves(h)]
    means = [np.mean(part) for part in np.split(diagonal, np.cumsum(sizes)[:-1])]
    np.testing.assert_allclose(state.scales, means, rtol=0.1)
    assert max(means) > 3 * min(means)
    assert state.iterations != without.iterations
    # The average changes only when it is due.
    _, second = solve(solver, fisher, h, LAM, state)
    np.testing.assert_array_equal(second.scales, state.scales)
    _, third = solve(solver, fisher, h, LAM, second)
    _, fourth = solve(solver, fisher, h, LAM, third)
    assert np.all(np.asarray(fourth.scales) != np.asarray(state.scales))


@pytest.mark.slow
def test_single_precision_is_enough_for_nine_thousand_parameters():
    """Where lineax gives NaN."""
    name = "deceptive"
    policy = Network(width=88)(enumerated(name), key=jax.random.key(0))
    h = random_like(policy)
    assert flat(h).size > 9000
    occupancy = visits(name, 100)
    assert occupancy.weights.dtype == jnp.float32
    fisher = Fisher(enumerated(name), policy, occupancy)
    for preconditioner in (False, True):
        solver = ConjugateGradients(40, 1e-4, preconditioner=preconditioner)
        found, state = solve(solver, fisher, h, 1e-3)
        assert np.isfinite(flat(found)).all()
        assert preconditioner or state.residual < 0.1
    zero = jax.tree.map(jnp.zeros_like, h)
    found, state = solve(solver, fisher, zero, 1e-3)
    assert not flat(found).any()
    assert (state.residual, state.iterations) == (0, 0)


# Padding.


def pad(whole, count):
    """All but some rows as padding, anywhere; and those rows alone."""
    live = np.random.default_rng(count).permutation(len(whole.weights)) < count
    padded = eqx.tree_at(lambda o: o.weights, whole, jnp.where(live, whole.weights, 0))
    return padded, jax.tree.map(lambda x: x[live], whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "scores"),
    [(ConjugateGradients(10), False), (KFAC(), True), (KFAC(eigenvalues=True), False),
     (Diagonal(), True)],
    ids=["cg", "kfac", "ekfac", "diagonal"],
)  # fmt: skip
@float64
def test_padding_changes_nothing(solver, scores):
    name = "deceptive"
    h = random_like(network(name))
    padded, short = (
        flat(solve(solver, fisher_of(name, occupancy), h, LAM)[0])
        for occupancy in pad(visits(name, 128, scores=scores), 20)
    )
    np.testing.assert_allclose(padded, short, rtol=1e-8, atol=1e-10)


@float64
def test_the_smallest_size_that_holds_the_live_rows_is_used():
    """With the right rows, whatever their number."""
    rows = 4096

    @eqx.filter_jit
    def measure(fisher):
        def size_and_sums(fisher):
            o = fisher.occupancy
            sums = jnp.zeros((25, 3)).at[o.states, o.actions].add(o.weights)
            return jnp.array(len(o.weights)), sums

        return on_live_rows(size_and_sums, fisher)

    whole = visits("deceptive", rows, scores=True)
    for count, expected in [
        (0, 64), (64, 64), (65, 256), (257, 1024), (1025, 2048), (2049, rows), (rows, rows)
    ]:  # fmt: skip
        padded, short = pad(whole, count)
        size, sums = measure(fisher_of("deceptive", padded))
        assert size == expected
        by_hand = np.zeros((25, 3))
        np.add.at(by_hand, (short.states, short.actions), short.weights)
        np.testing.assert_allclose(sums, by_hand, rtol=1e-12)


@float64
def test_few_rows_and_complete_occupancies_are_left_alone():
    space = enumerated("deceptive")
    complete = Occupancy(jnp.arange(space.num_inner), jnp.zeros(space.num_inner), complete=True)
    for occupancy in (complete, visits("deceptive", 127, live=0.01)):
        fisher = fisher_of("deceptive", occupancy)
        found = on_live_rows(lambda f: jnp.array(len(f.occupancy.weights)), fisher)
        assert found == len(occupancy.weights)


# Kronecker factors.


def layers_by_hand(fisher):
    r"""$\bar a$ and the columns $g_k$ of every state, from the one-hot code by dense products."""
    policy, occupancy, space = fisher.policy, fisher.occupancy, fisher.env
    states = np.asarray(occupancy.states)
    ms = [np.asarray(m) for m in matrices(policy)]
    if hasattr(policy.first, "tokens"):
        x = np.eye(len(ms[0]) - 1)[np.asarray(jax.vmap(policy.first.tokens)(states))].sum(1)
    else:
        x = policy.first.observation.table[states].view(np.float32).astype(float)
    inputs, outputs = [], []
    for i, m in enumerate(ms):
        x = np.where(x > 0, x, 0.01 * x) if i else x
        inputs.append(np.hstack([x, np.ones((len(x), 1))]))
        x = inputs[-1] @ m
        outputs.append(x)
    valid = np.asarray(space.child)[states] >= 0
    probs = np.exp(oracles.log_softmax(x, valid))
    columns = []
    for k, p in enumerate(probs):
        b = np.diag(np.sqrt(p)) - np.outer(p, np.sqrt(p))
        if occupancy.actions is not None:
            b = (np.eye(len(p))[occupancy.actions[k]] - p)[:, None]
        g = [b]
        for m, x in zip(ms[:0:-1], outputs[-2::-1], strict=True):
            g.append(np.where(x[k] >= 0, 1, 0.01)[:, None] * (m[:-1] @ g[-1]))
        columns.append(g[::-1])
    return inputs, [np.stack(layer) for layer in zip(*columns, strict=True)]


def factors_by_hand(fisher):
    inputs, columns = layers_by_hand(fisher)
    w = np.asarray(fisher.occupancy.weights)
    for x, g in zip(inputs, columns, strict=True):
        yield np.einsum("n,ni,nj->ij", w, x, x) / w.sum(), np.einsum("n,nik,njk->ij", w, g, g)


def layer_blocks(fisher):
    """The diagonal blocks of the dense Fisher, one a layer, in the order of `matrices`."""
    h = eqx.filter(fisher.policy, eqx.is_inexact_array)
    size = flat(h).size
    number = ravel_pytree(h)[1](jnp.arange(size, dtype=jnp.float64))
    full = dense(fisher)
    for m in matrices(number):
        places = np.ravel(m).astype(int)
        yield full[np.ix_(places, places)]


CASES = [("deceptive", False), ("tree", True)]


@pytest.mark.parametrize(("name", "scores"), CASES)
@float64
def test_the_factors_are_those_of_dense_layers_on_the_one_hot_code(name, scores):
    """`Look` counts pairs instead; the mean length is in G alone."""
    fisher = fisher_of(name, visits(name, 30, live=0.6, scores=scores), depth=3)
    _, state = solve(KFAC(), fisher, random_like(fisher.policy), LAM)
    pairs = list(zip(state.factors, factors_by_hand(fisher), strict=True))
    assert len(pairs) == 4
    for found, expected in pairs:
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-13)
    longer = eqx.tree_at(lambda f: f.occupancy.weights, fisher, 7 * fisher.occupancy.weights)
    _, scaled = solve(KFAC(), longer, random_like(fisher.policy), LAM)
    for (a, g), (same, more) in zip(state.factors, scaled.factors, strict=True):
        np.testing.assert_allclose(same, a, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(more, 7 * g, rtol=1e-12, atol=1e-15)


@float64
def test_counts_of_pairs_are_the_moments_of_the_one_hot_code():
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.integers(0, 4, 50), 4 + rng.integers(0, 3, 50), np.full(50, 7)], 1)
    weights = rng.random(50)
    one_hot = np.eye(8)[tokens].sum(1)
    found = second_moment(jnp.asarray(tokens), jnp.asarray(weights), 8)
    np.testing.assert_allclose(found, (weights[:, None] * one_hot).T @ one_hot, rtol=1e-12)


@float64
def test_the_columns_of_the_covariance_need_one_less_than_the_actions():
    """Also where some actions have no probability, or none has."""
    probs = np.random.default_rng(0).dirichlet(np.full(4, 0.5), 6)
    probs[1:5] = [[0, 0.3, 0.7, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]
    found = np.asarray(covariance_root(jnp.asarray(probs)))
    assert found.shape == (3, 6, 4)
    for k, p in enumerate(probs):
        covariance = np.diag(p) - np.outer(p, p)
        np.testing.assert_allclose(found[:, k].T @ found[:, k], covariance, atol=1e-15)


@pytest.mark.parametrize(("name", "scores"), CASES)
@float64
def test_with_one_state_the_kronecker_product_is_the_block_of_the_fisher(name, scores):
    """And both solvers are then exact, up to where each puts the damping."""
    fisher = fisher_of(name, visits(name, 1, scores=scores))
    h = random_like(fisher.policy)
    kfac, state = solve(KFAC(), fisher, h, LAM)
    ekfac, rotated = solve(KFAC(eigenvalues=True), fisher, h, LAM)
    layers = zip(
        layer_blocks(fisher), state.factors, rotated.inverses, rotated.scales,
        matrices(h), matrices(kfac), matrices(ekfac), strict=True,
    )  # fmt: skip
    for block, factors, (ua, ug), scale, m, found, corrected in layers:
        a, g, right = map(np.asarray, (*factors, m))
        np.testing.assert_allclose(block, np.kron(a, g), atol=1e-12)
        basis = np.kron(ua, ug)
        np.testing.assert_allclose(basis * np.ravel(scale) @ basis.T, block, atol=1e-12)
        exact = np.linalg.solve(block + LAM * np.eye(len(block)), right.ravel())
        np.testing.assert_allclose(np.ravel(corrected), exact, rtol=1e-8, atol=1e-10)
        pi = np.sqrt(np.trace(a) / len(a) / (np.trace(g) / len(g)))
        i, j = np.eye(len(a)), np.eye(len(g))
        root = np.sqrt(LAM)
        damped = block + root / pi * np.kron(a, j) + pi * root * np.kron(i, g)
        split = np.linalg.solve(damped + LAM * np.eye(len(block)), right.ravel())
        np.testing.assert_allclose(np.ravel(found), split, rtol=1e-8, atol=1e-10)


@float64
def test_the_corrected_eigenvalues_are_the_diagonal_in_the_eigenbasis():
    fisher = fisher_of("deceptive", visits("deceptive", 30, live=0.5))
    _, state = solve(KFAC(eigenvalues=True), fisher, random_like(fisher.policy), LAM)
    layers = zip(layer_blocks(fisher), state.inverses, state.scales, state.factors, strict=True)
    for block, (a, g), scale, (fa, fg) in layers:
        basis = np.kron(a, g)
        diagonal = np.diag(basis.T @ block @ basis)
        np.testing.assert_allclose(np.ravel(scale), diagonal, rtol=1e-9, atol=1e-12)
        product = np.outer(np.linalg.eigvalsh(fa), np.linalg.eigvalsh(fg))
        assert np.abs(product.ravel() - diagonal).max() > 1e-3 * diagonal.max()


@pytest.mark.parametrize("eigenvalues", [False, True])
@float64
def test_moving_averages_and_when_inverses_are_due(eigenvalues):
    name, solver = "deceptive", KFAC(decay=0.7, refresh=3, eigenvalues=eigenvalues)
    h, state, mean, scales = random_like(network(name)), None, None, None
    for k in range(1, 8):
        fisher = fisher_of(name, visits(name, 20, seed=k))
        old, (found, state) = state, solve(solver, fisher, h, LAM, state)
        decay = min(1 - 1 / k, 0.7)
        now = list(factors_by_hand(fisher))
        mean = now if k == 1 else [
            tuple(decay * x + (1 - decay) * y for x, y in zip(a, b, strict=True))
            for a, b in zip(mean, now, strict=True)
        ]  # fmt: skip
        for (a, g), (mean_a, mean_g) in zip(state.factors, mean, strict=True):
            np.testing.assert_allclose(a, mean_a, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(g, mean_g, rtol=1e-9, atol=1e-12)
        assert state.solves == k
        leaves = zip(jax.tree.leaves(old and old.inverses), jax.tree.leaves(state.inverses),
                     strict=False)  # fmt: skip
        if k in (4, 7):
            assert all(np.any(x != y) for x, y in leaves)
        else:
            assert all(np.all(x == y) for x, y in leaves)
        if eigenvalues:
            scales = check_diagonals(fisher, old, state, decay, scales)
            continue
        for m, v, (a, g) in zip(matrices(h), matrices(found), state.inverses, strict=True):
            np.testing.assert_allclose(v, a @ m @ g, rtol=1e-12)


def check_diagonals(fisher, old, state, decay, scales):
    """An average of diagonals, the earlier ones expressed in the present basis."""
    means = []
    for i, block in enumerate(layer_blocks(fisher)):
        basis = np.kron(*state.inverses[i])
        mean = np.diag(basis.T @ block @ basis)
        if scales is not None:
            before = np.kron(*old.inverses[i])
            earlier = np.diag(basis.T @ (before * scales[i]) @ before.T @ basis)
            mean = decay * earlier + (1 - decay) * mean
        np.testing.assert_allclose(np.ravel(state.scales[i]), mean, rtol=1e-8, atol=1e-12)
        means.append(mean)
    return means


# The diagonal.


@pytest.mark.parametrize(("name", "scores"), CASES)
@float64
def test_the_diagonal_solver_keeps_the_diagonals_of_the_factors(name, scores):
    h, state, mean = random_like(network(name)), None, None
    for k in (1, 2):
        fisher = fisher_of(name, visits(name, 30, seed=k, live=0.6, scores=scores))
        found, state = solve(Diagonal(), fisher, h, LAM, state)
        now = [(np.diag(a), np.diag(g)) for a, g in factors_by_hand(fisher)]
        mean = now if k == 1 else [
            tuple((x + y) / 2 for x, y in zip(a, b, strict=True))
            for a, b in zip(mean, now, strict=True)
        ]  # fmt: skip
        for m, v, (a, g) in zip(matrices(h), matrices(found), mean, strict=True):
            np.testing.assert_allclose(v, m / (np.outer(a, g) + LAM), rtol=1e-9)


@float64
def test_the_diagonal_can_be_normalised_as_in_adafisher():
    fisher = fisher_of("deceptive", visits("deceptive", 30))
    _, state = solve(Diagonal(normalise=True), fisher, random_like(fisher.policy), LAM)
    for pair, moments in zip(state.factors, factors_by_hand(fisher), strict=True):
        for found, moment in zip(pair, moments, strict=True):
            d = np.diag(moment)
            np.testing.assert_allclose(found, (d - d.min()) / np.ptp(d), atol=1e-12)


# Around them.


@pytest.mark.parametrize("name", ["deceptive", "tree"])
@float64
def test_matrices_and_back(name):
    h = random_like(network(name))
    np.testing.assert_array_equal(flat(with_matrices(h, list(matrices(h)))), flat(h))
    assert isinstance(h, MLP)
    fisher = fisher_of(name, visits(name, 3))
    widths = [(g.shape[0], g.shape[2]) for _, g in eqx.filter_eval_shape(signals, fisher)]
    assert widths == [(fisher.env.num_actions - 1, m.shape[1]) for m in matrices(h)]


@pytest.mark.parametrize("solver", [KFAC(), Diagonal()])
def test_other_policies_are_refused(solver):
    with pytest.raises(ValueError, match="got a Tabular policy; use ConjugateGradients"):
        solver.init(Tabular(jnp.zeros((3, 2))))


@pytest.mark.parametrize(
    ("kind", "field", "value", "message"),
    [
        (ConjugateGradients, "iterations", 0, "iterations must be at least 1, got 0"),
        (ConjugateGradients, "probes", 0, "probes must be at least 1, got 0"),
        (ConjugateGradients, "refresh", -1, "refresh must be at least 1, got -1"),
        (ConjugateGradients, "tolerance", -0.1, r"tolerance must be in \[0, 1\), got -0.1"),
        (ConjugateGradients, "decay", 1.0, r"decay must be in \[0, 1\), got 1.0"),
        (KFAC, "decay", 1.0, r"decay must be in \[0, 1\), got 1.0"),
        (KFAC, "refresh", 0, "refresh must be at least 1, got 0"),
        (Diagonal, "decay", float("nan"), r"decay must be in \[0, 1\), got nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, field, value, message):
    with pytest.raises(ValueError, match=message):
        kind(**{field: value})


@pytest.mark.parametrize("solver", [ConjugateGradients(), KFAC(), Diagonal()])
def test_they_need_damping(solver):
    solver.check_damping(1e-3)
    with pytest.raises(ValueError, match="damping must be positive and finite"):
        solver.check_damping(0.0)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [ConjugateGradients(warm_start=True), KFAC(eigenvalues=True)])
def test_a_network_learns_with_them(solver):
    rule = ng.optim.Natural(ng.occupancy.Sampled(), solver, damping=1e-2, rate=0.05,
                            log_z_rate=0.1)  # fmt: skip
    timer = Timer(enumerated("grid"), rule, batch=16, design=Network(width=8, depth=1))
    losses = []
    for _ in range(5):
        timer.states, loss = advance(timer.algorithm, timer.states, jnp.array(20))
        losses.append(float(loss[0]))
    assert losses[-1] < 0.2 * losses[0]
    assert timer.states.rejected == 0


def test_they_can_be_configured():
    solver = {"name": "KFAC", "refresh": 20, "eigenvalues": True}
    rule = {"name": "Natural", "solver": solver, "occupancy": "Sampled"}
    found = setup_from({"env": {"name": "Hypergrid"}, "rule": rule}).rule.solver
    assert found == KFAC(refresh=20, eigenvalues=True)
