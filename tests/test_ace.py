"""ACE (reconstructed): the explorer, its loss, and the weights of the two halves."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from oracles import explore, float64, make_flow, on_batch, random_tables

import natgfn as ng
from natgfn.algorithm import Algorithm
from natgfn.envs import Hypergrid
from natgfn.optim import Euclidean
from natgfn.policies import Tabular
from natgfn.sources import ACE
from natgfn.sources.ace import explorer_losses
from natgfn.sources.companion import Companion


@float64
def test_the_explorer_balances_where_there_is_too_little_flow_and_keeps_away_elsewhere(world):
    canonical, other = random_tables(world, 1), random_tables(world, 2)
    middle = float(np.exp(np.median(oracles.residuals(world, canonical))))
    ace = ACE(threshold=middle, exponent=1.5, ceiling=0.1)

    def losses(space, flow, batch):
        return explorer_losses(ace, space, make_flow(other), batch), batch.balance

    found, balance = on_batch(world, make_flow(canonical), losses)
    np.testing.assert_allclose(balance, oracles.residuals(world, canonical), atol=1e-12)
    delta = (
        other.log_z
        + world.sum_taken(other.log_pf)
        - world.sum_arrived(canonical.log_pb)
        - 1.5 * world.log_rewards
    )
    lacking = np.asarray(balance) < np.log(middle)
    assert lacking.any()
    assert not lacking.all()
    away = np.logaddexp(0, delta - np.log(0.1))
    np.testing.assert_allclose(found, np.where(lacking, delta, away) ** 2, rtol=1e-10)


@float64
def test_both_halves_weigh_what_their_flows_say():
    world = explore(Hypergrid(3))
    flow, other = make_flow(random_tables(world, 1)), make_flow(random_tables(world, 2))

    def weighed(log_z):
        memory = Companion(eqx.tree_at(lambda f: f.log_z, other, log_z), None)

        def halves(space, flow, batch):
            batch = ACE(least=0.1, most=0.4).weigh(flow, batch, memory, jnp.array(0))
            return batch.weights, batch.omega

        return on_batch(world, flow, halves, np.arange(5))

    for less, share in ((10.0, 0.1), (-10.0, 0.4), (1.0, 1 / (1 + np.e))):
        weights, omega = weighed(flow.log_z - less)
        np.testing.assert_allclose(weights[:3], (1 - share) * 5 / 3)
        np.testing.assert_allclose(weights[3:], share * 5 / 2)
        np.testing.assert_allclose(weights.mean(), 1.0)
        np.testing.assert_allclose(omega, [5 / 3] * 3 + [0.0] * 2)


def test_half_of_a_batch_comes_from_the_explorer():
    """An explorer that never stops before the corner."""
    space = ng.statespace.enumerate_states(Hypergrid(4))
    algorithm = Algorithm(space, Euclidean(), source=ACE(), batch=6)
    flow = ng.policies.Flow(
        Tabular.forward(space), ng.policies.Uniform().backward(space), jnp.array(0.0)
    )
    memory = algorithm.source.init(space, flow, key=jax.random.key(0))
    stubborn = memory.flow.forward.logits.at[:, -1].set(-50.0)
    memory = eqx.tree_at(lambda m: m.flow.forward.logits, memory, stubborn)
    given = (space, flow, algorithm.proposal, 6, memory, jnp.array(0))
    paths = jax.jit(lambda key: algorithm.source.draw(*given, key=key))(jax.random.key(1))
    assert np.asarray(paths.lengths)[3:].tolist() == [7, 7, 7]
    assert np.asarray(paths.lengths)[:3].min() < 7


@pytest.mark.slow
def test_the_explorer_finds_what_the_canonical_sampler_lacks():
    """It learns, resumes, and both come to the target."""
    run = ng.train(
        Hypergrid(4),
        Euclidean(0.5, log_z_rate=0.1),
        source=ACE(rule=Euclidean(0.5, log_z_rate=0.1)),
        batch=64,
        updates=1_000,
        evaluate_every=1_000,
        progress=False,
    )
    assert run.metrics["tv"][-1, 0] < 0.05
    assert np.abs(np.asarray(run.state.memory.flow.forward.logits)).max() > 0.1


@pytest.mark.parametrize(
    "wrong", [{"threshold": 0.0}, {"exponent": -1.0}, {"least": 0.6}, {"most": 1.0}]
)
def test_numbers_are_checked(wrong):
    with pytest.raises(ValueError, match="must be"):
        ACE(**wrong)
