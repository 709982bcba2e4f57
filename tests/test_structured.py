"""The structured regime, against sums over every assignment of small factor graphs."""

import functools
from dataclasses import dataclass
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphical_oracles import ising_grid, listed, random_graph
from jax.flatten_util import ravel_pytree
from oracles import float64
from scipy.special import logsumexp

import natgfn as ng
from natgfn import certify, objectives, occupancy, policies, solvers
from natgfn.check import check_environment
from natgfn.envs import Assignment, Assignments
from natgfn.fisher import Fisher, tabular_gram
from natgfn.graphical import FactorGraph, infer
from natgfn.objectives import evaluate, expected
from natgfn.occupancy import context_occupancy
from natgfn.policies import Flow
from natgfn.sampling import OnPolicy, Trajectories, Weighting
from natgfn.statespace import enumerate_states
from paper.experiments.structured import worst_marginal
from paper.experiments.structured_targets import grid, tempered_chain

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


def pairwise(seed: int, zeros: float) -> FactorGraph:
    """A grid of nine variables, one of them with three values, with random factors."""
    rng = np.random.default_rng(seed)
    cards = (2, 3, *[2] * 7)
    sure = [rng.integers(card) for card in cards]
    factors = []
    for a in range(9):
        for b in [a + 1] * (a % 3 < 2) + [a + 3] * (a < 6):
            table = rng.normal(size=(cards[a], cards[b]))
            forbidden = rng.random(table.shape) < zeros
            forbidden[sure[a], sure[b]] = False
            factors.append(((a, b), np.where(forbidden, -np.inf, table)))
    return FactorGraph.of(cards, factors)


GRAPHS = {
    "cliques": functools.partial(random_graph, 18),
    "grid": functools.partial(pairwise, 0, zeros=0.2),
    "positive": functools.partial(pairwise, 0, zeros=0.0),
}
DESIGNS = {
    "table": policies.ContextTable(),
    "nearest": policies.ContextTable(size=2),
    "network": policies.ContextMLP(width=4, depth=1),
}
CASES = [
    ("cliques", "table"),
    ("grid", "nearest"),
    ("cliques", "network"),
    ("positive", "nearest"),
]


@dataclass(frozen=True)
class Case:
    """An environment, a policy, and every trajectory with what the policy makes of it."""

    env: Assignments
    flow: Flow
    paths: Trajectories
    by_time: np.ndarray
    """The values of each assignment in the order of the steps, `[n, steps]`."""
    log_rewards: np.ndarray
    probs: np.ndarray
    """The policy in each state on each trajectory, `[steps, n, values]`."""
    scores: np.ndarray
    """The derivative of the logarithm of each step, `[steps, n, parameters]`."""

    @property
    def steps(self) -> np.ndarray:
        """The probability of each step, `[steps, n]`."""
        return np.take_along_axis(self.probs, self.by_time.T[..., None], axis=2)[..., 0]

    @property
    def law(self) -> np.ndarray:
        """Of the assignments."""
        return np.prod(self.steps, axis=0)

    @property
    def target(self) -> np.ndarray:
        return np.exp(self.log_rewards - logsumexp(self.log_rewards))

    @property
    def surplus(self) -> np.ndarray:
        return np.log(self.law) - self.log_rewards

    def seen(self, contexts) -> list[list[tuple]]:
        """What each step of each trajectory sees: the step, and values."""
        place = {variable: step for step, variable in enumerate(self.env.order)}
        return [
            [(t, *(int(x[place[v]]) for v in seen)) for x in self.by_time]
            for t, seen in enumerate(contexts.seen)
        ]


def names_of(contexts) -> list[tuple]:
    """The step and the values of every context, in their order."""
    return [
        (t, *values)
        for t, seen in enumerate(contexts.seen)
        for values in product(*(range(contexts.cards[v]) for v in seen))
    ]


def every_assignment(env: Assignments) -> tuple[np.ndarray, np.ndarray, np.ndarray, Trajectories]:
    """Those of positive weight by time, their log-rewards, the values that can be completed, and
    the trajectories."""
    known = listed(env.graph)
    kept = np.isfinite(known.log_values)
    by_time = known.assignments[kept][:, env.order]
    prefixes = {tuple(x[:t]) for x in by_time for t in range(len(env.order) + 1)}
    shape = (len(env.order), len(by_time), env.num_actions)
    mask = np.zeros(shape, bool)
    for t, i, a in np.ndindex(shape):
        mask[t, i, a] = (*by_time[i, :t], a) in prefixes
    values = np.full((len(env.order) + 1, *by_time.shape), -1, np.int8)
    for t, variable in enumerate(env.order):
        values[t + 1 :, :, variable] = by_time[:, t]
    step = np.repeat(np.arange(len(values), dtype=np.int32)[:, None], len(by_time), 1)
    states = Assignment(jnp.asarray(values), jnp.asarray(step))
    actions = jnp.asarray(by_time.T.astype(np.int32))
    paths = Trajectories(states, actions, jnp.ones(actions.shape, bool))
    return by_time, known.log_values[kept], mask, paths


@functools.cache
def case(graph: str, design: str) -> Case:
    env = Assignments(GRAPHS[graph]())
    by_time, log_rewards, mask, paths = every_assignment(env)
    policy = DESIGNS[design](env, key=jax.random.key(1))
    params, static = eqx.partition(policy, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(params)
    theta = np.random.default_rng(3).normal(size=flat.size)

    def log_probs(theta):
        policy = eqx.combine(unravel(theta), static)
        logits = jnp.where(mask, jax.vmap(jax.vmap(policy))(paths.before), -1e30)
        return logits - jax.scipy.special.logsumexp(logits, axis=-1, keepdims=True)

    def steps(theta):
        return jnp.take_along_axis(log_probs(theta), paths.actions[..., None], axis=2)[..., 0]

    probs, scores = jax.jit(lambda x: (log_probs(x), jax.jacfwd(steps)(x)))(jnp.asarray(theta))
    policy = eqx.combine(unravel(jnp.asarray(theta)), static)
    flow = Flow(policy, policies.UniformPolicy(env.num_actions), jnp.asarray(np.float64(0.3)))
    return Case(env, flow, paths, by_time, log_rewards, np.exp(probs), np.asarray(scores))


def flat_gradient(gradient: Flow) -> np.ndarray:
    """Of the forward policy, and of log Z last."""
    return np.append(ravel_pytree(gradient.forward)[0], gradient.log_z)


@eqx.filter_jit
def of_library(env, flow, paths, law):
    """What the library says of a case, in one program."""
    policy, n = flow.forward, law.size
    found = {}
    for name, objective in {
        "balance": objectives.TrajectoryBalance(),
        "variance": objectives.LogVariance(),
    }.items():
        found[name] = expected(objective, env, flow)
    advantage = evaluated(env, flow, paths, objectives.AdvantageBalance())
    weighted = eqx.tree_at(lambda b: b.weights, advantage, law * n)
    return found | {
        "occupancy": context_occupancy(env, policy),
        "fisher": Fisher(env, policy, occupancy.Separators()(env, policy)).as_matrix(),
        "residuals": advantage.residuals,
        "advantage": weighted.gradient(),
        "truncated": occupancy.Truncated()(env, policy).weights,
        "beliefs": occupancy.Beliefs()(env, policy).weights,
    }


def evaluated(env, flow, paths, objective):
    return evaluate(
        objective,
        env,
        flow,
        paths,
        proposal=OnPolicy(),
        reference=None,
        weighting=Weighting(),
    )


@functools.cache
def facts(graph: str, design: str) -> dict:
    here = case(graph, design)
    return of_library(here.env, here.flow, here.paths, jnp.asarray(here.law))


def target_flow(env: Assignments) -> Flow:
    probs = infer(env.graph, env.order).probs
    logits = jnp.asarray(np.log(np.where(probs > 0, probs, 1.0)))
    policy = policies.Tabular(logits, env.contexts())
    return Flow(policy, policies.UniformPolicy(env.num_actions), jnp.asarray(np.float64(env.log_z)))


# Occupancies and Fishers.


@pytest.mark.parametrize(("graph", "design"), CASES)
@float64
def test_contexts_have_the_probability_of_the_trajectories_through_them(graph, design):
    here = case(graph, design)
    np.testing.assert_allclose(here.law.sum(), 1.0, **TOLERANCE)
    contexts = here.flow.forward.contexts
    wanted = dict.fromkeys(names_of(contexts), 0.0)
    for through in here.seen(contexts):
        for name, probability in zip(through, here.law, strict=True):
            wanted[name] += probability
    found = facts(graph, design)["occupancy"]
    np.testing.assert_allclose(found, list(wanted.values()), **TOLERANCE)


@float64
def test_contexts_sum_up_the_states_of_the_exact_regime():
    here = case("grid", "nearest")
    space, policy = enumerate_states(here.env), here.flow.forward
    rows = np.asarray(policy.rows(jax.tree.map(jnp.asarray, space.states)))[: space.num_inner]
    table = policies.Tabular(policy.logits[rows])
    weights = occupancy.Exact()(space, table).weights
    wanted = np.bincount(rows, weights, policy.contexts.num_rows)
    np.testing.assert_allclose(facts("grid", "nearest")["occupancy"], wanted, **TOLERANCE)


# Where a value is ruled out in some states of a context only, blocks are a surrogate.
@pytest.mark.parametrize(("graph", "design"), [c for c in CASES if c != ("grid", "nearest")])
@float64
def test_fisher_is_that_of_all_trajectories(graph, design):
    here = case(graph, design)
    whole = here.scores.sum(axis=0)
    trajectories = (here.law[:, None] * whole).T @ whole
    by_step = sum((here.law[:, None] * step).T @ step for step in here.scores)
    np.testing.assert_allclose(trajectories, by_step, **TOLERANCE)
    np.testing.assert_allclose(facts(graph, design)["fisher"], trajectories, **TOLERANCE)


# Objectives in expectation.


@pytest.mark.parametrize(("graph", "design"), CASES)
@float64
def test_balance_in_expectation(graph, design):
    """$E_q[\\delta^2]$, and $E_q[2 \\delta \\nabla \\delta]$ without the derivative of q."""
    here, found = case(graph, design), facts(graph, design)
    delta = float(here.flow.log_z) + here.surplus
    slope = np.append(2 * (here.law * delta) @ here.scores.sum(axis=0), 2 * here.law @ delta)
    np.testing.assert_allclose(found["balance"].loss, here.law @ delta**2, **TOLERANCE)
    np.testing.assert_allclose(flat_gradient(found["balance"].gradient()), slope, **TOLERANCE)

    centred = here.surplus - here.law @ here.surplus
    slope = np.append(2 * (here.law * centred) @ here.scores.sum(axis=0), 0.0)
    np.testing.assert_allclose(found["variance"].loss, here.law @ centred**2, **TOLERANCE)
    np.testing.assert_allclose(flat_gradient(found["variance"].gradient()), slope, **TOLERANCE)


@pytest.mark.parametrize(
    "objective",
    [
        objectives.DetailedBalance(),
        objectives.AdvantageBalance(),
        objectives.TrajectoryBalance(objectives.Huber()),
        objectives.LogVariance(objectives.Huber()),
    ],
)
@float64
def test_no_expectation_of_other_objectives(objective):
    here = case("cliques", "table")
    with pytest.raises(ValueError, match=r"use sources\.Fresh") as caught:
        expected(objective, here.env, here.flow)
    assert "\n" not in str(caught.value)
    assert type(objective).__name__ in str(caught.value)


@pytest.mark.parametrize(("graph", "design"), CASES)
@float64
def test_advantages_have_the_gradient_of_balance(graph, design):
    here, found = case(graph, design), facts(graph, design)
    delta = float(here.flow.log_z) + here.surplus
    slope = np.append(2 * (here.law * delta) @ here.scores.sum(axis=0), 2 * here.law @ delta)
    np.testing.assert_allclose(flat_gradient(found["advantage"]), slope, **TOLERANCE)
    # They average to zero in every state, and the steps of a trajectory share what varies.
    each = np.asarray(found["residuals"]).reshape(-1, len(here.law))
    np.testing.assert_allclose(each[:-1] @ here.law, 0.0, **TOLERANCE)
    np.testing.assert_allclose(each[-1], here.law @ delta, **TOLERANCE)
    if design == "table":
        centred = here.surplus - here.law @ here.surplus
        np.testing.assert_allclose(each[:-1].sum(axis=0), centred, **TOLERANCE)


@float64
def test_nothing_is_left_at_the_target():
    here = case("cliques", "table")
    found = of_library(here.env, target_flow(here.env), here.paths, jnp.asarray(here.target))
    np.testing.assert_allclose(found["residuals"], 0.0, **TOLERANCE)
    for name in ("balance", "variance"):
        np.testing.assert_allclose(found[name].loss, 0.0, **TOLERANCE)
        np.testing.assert_allclose(flat_gradient(found[name].gradient()), 0.0, **TOLERANCE)


# Metrics.


def stacked(*flows: Flow) -> Flow:
    return jax.tree.map(lambda *x: jnp.stack(x), *flows)


@pytest.mark.parametrize(
    ("graph", "design"), [("cliques", "table"), ("grid", "nearest"), ("cliques", "network")]
)
@float64
def test_message_metrics(graph, design):
    here = case(graph, design)
    wanted = target_flow(here.env) if design == "table" else here.flow
    found = ng.metrics.message_metrics(here.env, stacked(here.flow, wanted))
    law, target, log_z = here.law, here.target, logsumexp(here.log_rewards)
    log_ratio = np.log(law) - np.log(target)
    marginals = [
        np.abs(np.bincount(values, law) - np.bincount(values, target)).max()
        for values in here.by_time.T
    ]
    brute = {
        "kl": law @ log_ratio,
        "reverse_kl": -target @ log_ratio,
        "elbo": law @ (here.log_rewards - np.log(law)),
        "eubo": target @ (here.log_rewards - np.log(law)),
        "marginal_error": max(marginals),
        "loss": law @ (float(here.flow.log_z) + here.surplus) ** 2,
    }
    assert brute.keys() == found.keys()
    for name, value in brute.items():
        np.testing.assert_allclose(found[name][0], value, **TOLERANCE, err_msg=name)
        if design == "table":
            left = log_z if name in ("elbo", "eubo") else 0.0
            np.testing.assert_allclose(found[name][1], left, **TOLERANCE, err_msg=name)


# Approximate occupancies.


def probs_by_context(env: Assignments, policy) -> dict[tuple, np.ndarray]:
    """The policy in each context, over the values which some state there has."""
    found, mask = {}, np.asarray(env.mask(policy.contexts))
    names, logits = names_of(policy.contexts), np.asarray(policy.logits)
    for name, valid, row in zip(names, mask, logits, strict=True):
        weights = np.where(valid, np.exp(row), 0.0)
        found[name] = weights / max(weights.sum(), 1e-300)
    return found


def truncated_by_hand(env: Assignments, policy) -> dict[tuple, float]:
    """Contexts put together from earlier cliques, the latest first, as products of conditionals."""
    contexts, probs = policy.contexts, probs_by_context(env, policy)
    weights: dict[tuple, float] = {}
    cliques: list[dict[tuple, float]] = []
    scopes = [(*seen, v) for seen, v in zip(contexts.seen, contexts.order, strict=True)]

    def conditional(source, values, new, given):
        new_total = given_total = 0.0
        for key, probability in cliques[source].items():
            entry = dict(zip(scopes[source], key, strict=True))
            if all(entry[v] == values[v] for v in given):
                given_total += probability
                if all(entry[v] == values[v] for v in new):
                    new_total += probability
        return new_total / given_total if given_total else 0.0

    for t, seen in enumerate(contexts.seen):
        clique = {}
        for name in (name for name in names_of(contexts) if name[0] == t):
            values, left, weight = dict(zip(seen, name[1:], strict=True)), set(seen), 1.0
            while left:
                source = max(contexts.order.index(v) for v in left)
                new = left & set(scopes[source])
                given = (set(seen) - left) & set(scopes[source])
                weight *= conditional(source, values, new, given)
                left -= new
            weights[name] = weight
            for a in range(contexts.cards[contexts.order[t]]):
                clique[(*name[1:], a)] = weight * probs[name][a]
        cliques.append(clique)
    return weights


def beliefs_by_hand(env: Assignments, policy) -> dict[tuple, float]:
    """Contexts as products of the marginals of their variables, step after step."""
    contexts, probs = policy.contexts, probs_by_context(env, policy)
    weights: dict[tuple, float] = {}
    marginals: dict[int, np.ndarray] = {}
    for t, (seen, variable) in enumerate(zip(contexts.seen, contexts.order, strict=True)):
        marginals[variable] = np.zeros(env.num_actions)
        for name in (name for name in names_of(contexts) if name[0] == t):
            each = [marginals[v][x] for v, x in zip(seen, name[1:], strict=True)]
            weights[name] = float(np.prod(each))
            law, card = probs[name], contexts.cards[variable]
            if not law.any():  # nothing is possible there: any law will do
                law = np.where(np.arange(env.num_actions) < card, 1 / card, 0.0)
            marginals[variable] += weights[name] * law
    return weights


def check_steps_sum_to_one(contexts, weights) -> None:
    assert np.all(np.asarray(weights) >= 0)
    sums = np.bincount(contexts.steps, weights, contexts.num_steps)
    np.testing.assert_allclose(sums, 1.0, **TOLERANCE)


@pytest.mark.parametrize(("graph", "design"), CASES)
@float64
def test_truncated_contexts(graph, design):
    here, found = case(graph, design), facts(graph, design)
    contexts = here.flow.forward.contexts
    check_steps_sum_to_one(contexts, found["truncated"])
    if contexts == here.env.contexts():
        np.testing.assert_allclose(found["truncated"], found["occupancy"], **TOLERANCE)
    else:
        wanted = list(truncated_by_hand(here.env, here.flow.forward).values())
        np.testing.assert_allclose(found["truncated"], wanted, **TOLERANCE)
        assert np.abs(np.asarray(found["occupancy"]) - wanted).max() > 1e-3


@float64
def test_truncated_contexts_whose_pieces_overlap():
    """Three variables from two cliques that have one in common: a conditional."""
    env = Assignments(ising_grid(4, 5), "numbered")
    contexts = env.contexts(4)
    logits = np.random.default_rng(7).normal(size=(contexts.num_rows, 2))
    policy = policies.Tabular(jnp.asarray(logits), contexts)
    found = eqx.filter_jit(occupancy.Truncated())(env, policy).weights
    check_steps_sum_to_one(contexts, found)
    wanted = list(truncated_by_hand(env, policy).values())
    np.testing.assert_allclose(found, wanted, **TOLERANCE)


@pytest.mark.parametrize("graph", ["grid", "positive"])
@float64
def test_beliefs_propagate_marginals(graph):
    here, found = case(graph, "nearest"), facts(graph, "nearest")
    check_steps_sum_to_one(here.flow.forward.contexts, found["beliefs"])
    wanted = list(beliefs_by_hand(here.env, here.flow.forward).values())
    np.testing.assert_allclose(found["beliefs"], wanted, **TOLERANCE)
    assert np.abs(np.asarray(found["occupancy"]) - wanted).max() > 1e-3


@float64
def test_approximations_are_exact_on_a_chain():
    rng = np.random.default_rng(5)
    cards = (3, 2, 3, 1, 2)
    bonds = [((v, v + 1), rng.normal(size=cards[v : v + 2])) for v in range(4)]
    bonds[1][1][0, 2] = bonds[0][1][1, 1] = -np.inf
    env = Assignments(FactorGraph.of(cards, bonds))
    contexts = env.contexts(1)
    assert contexts == env.contexts() == env.contexts(7)
    policy = policies.Tabular(jnp.asarray(rng.normal(size=(contexts.num_rows, 3))), contexts)

    @eqx.filter_jit
    def weights(env, policy):
        kinds = (occupancy.Separators(), occupancy.Truncated(), occupancy.Beliefs())
        return [kind(env, policy).weights for kind in kinds]

    wanted, *others = weights(env, policy)
    for found in others:
        np.testing.assert_allclose(found, wanted, **TOLERANCE)


# Sampled batches.


@eqx.filter_jit
def of_batch(env, flow, paths, damping):
    """What the library makes of some trajectories, in one program."""
    batch = evaluated(env, flow, paths, objectives.TrajectoryBalance())
    policy, h = flow.forward, batch.gradient().forward
    found = {"gram": tabular_gram(env, flow, batch), "h": h}
    for kind in (occupancy.Sampled(), occupancy.SampledScores(), occupancy.Separators(floor=True)):
        visited = kind(env, policy, batch)
        fisher = Fisher(env, policy, visited)
        solved = solvers.Block().solve(fisher, h, damping)[0]
        found[type(kind).__name__] = (visited.weights, fisher.as_matrix(), solved)
    return found


@float64
def test_tables_of_contexts_on_sampled_batches():
    here = case("cliques", "table")
    picked = np.random.default_rng(0).integers(len(here.law), size=9)
    picked[4] = picked[2]
    paths = jax.tree.map(lambda x: x[:, picked], here.paths)
    found = of_batch(here.env, here.flow, paths, jnp.asarray(np.float64(0.03)))
    scores, probs = here.scores[:, picked], here.probs[:, picked]
    whole = np.concatenate([scores.sum(axis=0), np.ones((9, 1))], axis=1)
    np.testing.assert_allclose(found["gram"], whole @ whole.T, **TOLERANCE)

    contexts = here.flow.forward.contexts
    number = {name: i for i, name in enumerate(names_of(contexts))}
    rows = np.array([[number[name] for name in step] for step in here.seen(contexts)])[:, picked]
    table = here.flow.forward.logits.shape
    sampled = np.zeros((*table, *table))
    for row, p in zip(rows.ravel(), probs.reshape(-1, table[1]), strict=True):
        sampled[row, :, row] += (np.diag(p) - np.outer(p, p)) / 9
    flat = scores.reshape(-1, scores.shape[2])
    shares = np.bincount(rows.ravel(), minlength=table[0]) / 9
    exact = context_occupancy(here.env, here.flow.forward)
    weights, _, _ = found["Separators"]
    np.testing.assert_allclose(weights, np.maximum(exact, shares), **TOLERANCE)
    assert np.any(shares > exact)
    assert np.any((shares < exact) & (shares > 0))
    size = sampled[:, :, 0, 0].size
    matrices = {
        "Sampled": sampled.reshape(size, size),
        "SampledScores": flat.T @ flat / 9,
        "Separators": np.asarray(found["Separators"][1]),
    }
    for name, matrix in matrices.items():
        np.testing.assert_allclose(found[name][1], matrix, **TOLERANCE)
        wanted = np.linalg.solve(matrix + 0.03 * np.eye(size), np.ravel(found["h"].logits))
        np.testing.assert_allclose(np.ravel(found[name][2].logits), wanted, **TOLERANCE)


def test_a_floor_needs_a_batch_and_a_table():
    env = Assignments(ising_grid(2, 2))
    policy = policies.ContextTable()(env)
    with pytest.raises(ValueError, match="sampled gradients"):
        occupancy.Separators(floor=True)(env, policy)


# Training.


def levels(contexts) -> int:
    """How many cliques there are from a root of the junction tree to its farthest leaf."""
    depth = {}
    for seen, variable in zip(contexts.seen, contexts.order, strict=True):
        depth[variable] = 1 + max((depth[v] for v in seen), default=0)
    return max(depth.values())


def check_noise_free(graph: FactorGraph) -> None:
    env = Assignments(graph)
    enough = levels(env.contexts())
    run = ng.train(env, updates=enough + 1, evaluate_every=1, progress=False)
    assert run.setup.source == ng.sources.Messages()
    kl = run.metrics["kl"][:, 0]
    assert np.all(kl[enough:] < 1e-9)
    assert kl[0] > 1e-3
    # Its own step comes last: that of log Z sees the policy before.
    np.testing.assert_allclose(run.state.flow.log_z, env.log_z, rtol=1e-5, atol=1e-5)
    drawn = np.asarray(run.sample(200).values)
    assert np.isfinite(graph.log_value(drawn)).all()


def test_training_without_noise_takes_as_many_updates_as_the_tree_is_deep():
    check_noise_free(GRAPHS["grid"]())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 5, 13, 18, 26, 28, 31])
def test_training_without_noise_on_random_graphs(seed):
    check_noise_free(random_graph(seed))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("Separators", marks=pytest.mark.slow),
        pytest.param("Truncated", marks=pytest.mark.slow),
        "Beliefs",
    ],
)
def test_training_where_the_policy_sees_less(kind):
    """With zero factors that it does not see: it still improves, and draws what is possible."""
    env = Assignments(GRAPHS["grid"]())
    rule = ng.optim.Natural(getattr(occupancy, kind)(), solvers.Block(), rate=0.2)
    run = ng.train(
        env,
        rule,
        source=ng.sources.Messages(),
        policy=policies.ContextTable(2),
        updates=30,
        evaluate_every=30,
        progress=False,
    )
    assert run.metrics["rejected"][-1] == 0
    assert run.metrics["kl"][-1] < 0.2 * run.metrics["kl"][0]
    drawn = np.asarray(run.sample(200).values)
    assert np.isfinite(env.graph.log_value(drawn)).all()


# The environment.


@pytest.mark.parametrize("seed", [pytest.param(5, marks=pytest.mark.slow), 18])
def test_nothing_is_wrong_with_assignments(seed):
    env = Assignments(random_graph(seed))
    findings = check_environment(env)
    assert all(finding.ok is not False for finding in findings), "\n".join(map(str, findings))
    assert sum(finding.ok is True for finding in findings) >= 8


@pytest.mark.parametrize("graph", ["cliques", "grid"])
@float64
def test_partial_rewards_telescope(graph):
    env = Assignments(GRAPHS[graph]())
    by_time, log_rewards, mask, paths = every_assignment(env)
    assert env.log_z == pytest.approx(logsumexp(log_rewards), abs=1e-10)
    at = jax.jit(jax.vmap(jax.vmap(lambda s: (env.log_partial(s), env.forward_mask(s)))))
    partial, possible = map(np.asarray, at(paths.states))
    np.testing.assert_array_equal(possible[:-1], mask)
    place = {variable: step for step, variable in enumerate(env.order)}
    values = by_time[:, [place[v] for v in range(len(place))]]
    for t, found in enumerate(partial):
        wanted = np.zeros(len(values))
        for scope, table in env.graph.factors():
            if all(place[v] < t for v in scope):
                wanted += table[tuple(values[:, list(scope)].T)]
        np.testing.assert_allclose(found, wanted, **TOLERANCE)
    np.testing.assert_allclose(partial[-1], log_rewards, **TOLERANCE)
    found = jax.jit(jax.vmap(env.log_reward))(paths.last)
    np.testing.assert_allclose(found, log_rewards, **TOLERANCE)


def test_too_wide_with_zero_pairs_is_one_line():
    with pytest.raises(ValueError, match="is zero somewhere") as caught:
        Assignments(GRAPHS["grid"](), max_entries=20)
    assert "\n" not in str(caught.value)


def test_too_wide_without_zeros():
    """No tree, but a policy that sees four variables can be drawn from and trained."""
    wide = ising_grid(6, 6)
    pinned = FactorGraph.of([2] * 36, [*wide.factors(), ((7,), np.array([-np.inf, 0.0]))])
    env = Assignments(pinned, max_entries=100)
    assert env.tree is None
    assert env.log_z == pytest.approx(infer(pinned).log_z, abs=1e-9)
    with pytest.raises(ValueError, match="needs a junction tree"):
        env.contexts()
    run = ng.train(env, policy=policies.ContextTable(4), batch=32, updates=20, progress=False)
    assert run.setup.watch == (ng.watch.Sampled(),)
    assert run.metrics["rejected"][-1] == 0
    assert run.metrics["train_loss"][-1] < run.metrics["train_loss"][1]
    drawn = np.asarray(run.sample(100).values)
    assert np.isfinite(pinned.log_value(drawn)).all()


def test_the_bound_of_a_surrogate_and_its_relative_error():
    """Against blocks written out, context by context."""
    env = Assignments(ising_grid(2, 3), "numbered")
    policy = policies.ContextTable(1)(env)
    noise = jax.random.normal(jax.random.key(0), policy.logits.shape)
    policy = eqx.tree_at(lambda p: p.logits, policy, noise)
    errors, rho = certify.structured_certificate(env, policy, occupancy.Truncated(), 0.1)
    exact = context_occupancy(env, policy)
    other = occupancy.Truncated()(env, policy).weights
    probs = np.asarray(policies.context_probs(env, policy))
    tops = np.array([np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[-1] for p in probs])
    change = np.abs(np.asarray(other - exact))
    np.testing.assert_allclose(rho, np.max(change * tops / (exact * tops + 0.1)), rtol=1e-5)
    steps = policy.contexts.steps
    total = sum(tops[steps == t].max() * change[steps == t].sum() for t in range(6))
    np.testing.assert_allclose(errors.total, total, rtol=1e-5)
    assert 0 < rho <= errors.relative


@pytest.mark.parametrize(("trajectories", "size"), [(1, 0), (62, 0), (63, 1), (128_000, 1)])
def test_a_table_sees_what_its_trajectories_can_teach(trajectories: int, size: int):
    """On a ring of five, 1 + 2 + 2 + 2 + 2 free logits if one variable is seen: 63 are due.

    A table that sees two has more entries than are allowed.
    """
    pairs = [((a, (a + 1) % 5), np.eye(2)) for a in range(5)]
    env = Assignments(FactorGraph.of([2] * 5, pairs), "numbered", max_entries=20)
    assert env.tree is None
    assert policies.usual_design(env, trajectories) == policies.ContextTable(size)
    setup = ng.training.Setup(env, batch=1, updates=trajectories)
    assert ng.training.decide(setup)[0].policy == policies.ContextTable(size)


def test_chains_find_the_marginals_of_a_grid():
    graph = grid(3)
    exact = np.array([marginal[1] for marginal in infer(graph).marginals])
    chains = tempered_chain(graph, sweeps=4_000)
    error = chains.ups.mean(0) - exact
    assert np.all(np.abs(error) < 5 * chains.ups.std(0, ddof=1) / np.sqrt(len(chains.ups)))
    assert np.max(np.abs(error)) < 0.01
    assert chains.states.shape == (512, 9)
    assert np.max(np.abs(chains.states.mean(0) - exact)) < 0.1


def test_the_noise_of_a_marginal_is_the_error_of_equal_laws():
    rng = np.random.default_rng(0)
    chance = rng.uniform(0.2, 0.8, size=300)
    drawn = (rng.random((4_000, 300)) < chance).astype(int)
    ups = chance + 0.01 * rng.normal(size=(8, 300))
    error, noise = worst_marginal(drawn, ups)
    assert 0.5 < error / noise < 2
    chance[7] += 0.2
    error, again = worst_marginal((rng.random((4_000, 300)) < chance).astype(int), ups)
    assert error == pytest.approx(0.2, abs=0.03)
    assert again < 2 * noise
