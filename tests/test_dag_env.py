"""Acyclic graphs edge by edge: closures, masks and flows against brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dag_oracles import COUNTS, all_dags, law, random_weights
from oracles import float64

from natgfn.check import check_environment
from natgfn.dag import Prior, graphs
from natgfn.envs import Dags
from natgfn.policies import Uniform, UniformPolicy, backward_table
from natgfn.sampling import OnPolicy, Trajectories, retrace, rollout
from natgfn.statespace import constructive_flow, enumerate_states, occupancy


def constrained(size: int = 4) -> np.ndarray:
    """Random weights, at most 2 parents, with 0 -> 2 required and 3 -> 1 forbidden."""
    names = tuple("abcd"[:size])
    prior = Prior(max_parents=2, require=(("a", "c"),), forbid=(("d", "b"),))
    return random_weights(size, 1.0, 3) + prior.local(names)


def drawn(env: Dags, num: int) -> Trajectories:
    """Random trajectories, in NumPy."""
    policy = UniformPolicy(env.num_actions)
    draw = jax.jit(lambda key: rollout(env, policy, OnPolicy(), num, key=key))
    return jax.tree.map(np.asarray, draw(jax.random.key(0)))


def test_closures_and_masks_along_random_paths():
    env = Dags(random_weights(6, 1.0, 0))
    paths = drawn(env, 64)
    states = paths.states
    edges = states.edges.reshape(-1, 6, 6)
    assert graphs.is_acyclic(edges).all()
    reached = graphs.ancestors(edges).swapaxes(1, 2) | np.eye(6, dtype=bool)
    np.testing.assert_array_equal(states.reached.reshape(-1, 6, 6), reached)
    before = jax.tree.map(lambda x: x[:-1].reshape(-1, *x.shape[2:]), paths.states)
    masks = np.asarray(jax.jit(jax.vmap(env.forward_mask))(before))
    assert paths.lengths.max() > 8
    for number in range(0, len(masks), 7):
        if before.stopped[number]:
            assert not masks[number].any()
            continue
        for action, (i, j) in enumerate(zip(*env.pairs, strict=True)):
            graph = np.array(before.edges[number])
            free = not graph[i, j]
            graph[i, j] = True
            assert masks[number, action] == (free and graphs.is_acyclic(graph[None])[0])
        assert masks[number, -1]


@pytest.mark.parametrize("size", [3, 4])
def test_every_acyclic_graph_is_one_object(size: int):
    space = enumerate_states(Dags(random_weights(size, 1.0, 1)))
    assert space.num_terminal == COUNTS[size - 1]
    found = {x.tobytes() for x in np.asarray(space.terminals.edges)}
    assert found == {x.astype(bool).tobytes() for x in all_dags(size)}


@float64
def test_the_flow_of_the_target_ends_in_the_posterior():
    for table in (random_weights(4, 2.0, 2), constrained()):
        space = enumerate_states(Dags(table))

        def law_of_target(space=space):
            log_pb = backward_table(space, Uniform().backward(space))
            _, log_pf = constructive_flow(space, log_pb, jnp.asarray(space.log_rewards))
            return occupancy(space, jnp.exp(log_pf))[1]

        ends = jax.jit(law_of_target)()
        dags, probabilities, _ = law(table)
        chance = {x.astype(bool).tobytes(): p for x, p in zip(dags, probabilities, strict=True)}
        expected = [chance[x.tobytes()] for x in np.asarray(space.terminals.edges)]
        np.testing.assert_allclose(ends, expected, atol=1e-12)


def test_constraints_leave_exactly_the_allowed_graphs():
    table = constrained()
    env = Dags(table)
    assert env.required == ((0, 2),)
    space = enumerate_states(env)
    _, probabilities, _ = law(table)
    assert space.num_terminal == np.sum(probabilities > 0)
    assert np.isfinite(space.log_rewards).all()
    assert np.asarray(space.terminals.edges)[:, 0, 2].all()


def test_the_environment_keeps_its_promises():
    findings = check_environment(Dags(constrained()))
    assert len(findings) == 13
    assert all(finding.ok is not False for finding in findings)


def test_actions_are_pairs_row_by_row_and_then_stop():
    env = Dags(random_weights(4, 1.0, 0))
    step = jax.jit(lambda action: env.step(env.init(), action))
    for i, j in zip(*env.pairs, strict=True):
        assert np.argwhere(step(i * 3 + j - (j > i)).edges).tolist() == [[i, j]]
    assert step(12).stopped


def test_actions_alone_give_the_trajectories_back():
    env = Dags(constrained())
    paths = drawn(env, 20)
    again = jax.jit(lambda *given: retrace(env, *given))(paths.actions, paths.lengths)
    for x, y in zip(jax.tree.leaves(paths), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w[:, :4], "expected 8 sets"),
        (lambda w: np.where(w > 0, np.nan, w), "numbers or minus infinity"),
        (np.zeros_like, "must not be a parent of its own"),
        (lambda w: np.where(np.arange(8) == 0, -np.inf, w), "still be allowed without"),
    ],
)
def test_wrong_weights(change, words: str):
    with pytest.raises(ValueError, match=words):
        Dags(change(random_weights(3, 1.0, 0)))


def test_required_edges_in_a_circle():
    table = random_weights(2, 1.0, 0)
    table[[0, 1], 0] = -np.inf
    with pytest.raises(ValueError, match="form a cycle"):
        Dags(table)
