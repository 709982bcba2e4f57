# pyright: reportMissingImports=false
"""Trajectory balance with gfnx: its environments and rollouts, the whole loop compiled."""

import equinox as eqx
import gfnx
import jax
import jax.numpy as jnp
import optax
from gfnx.reward.dag_likelihood import BGeScore
from gfnx.reward.dag_prior import UniformDAGPrior

from .serve import DRAWS, serve
from .tasks import DEPTH, RATE, WIDTH, Task, observations


class Sampler:
    def __init__(self, task: Task):
        if task.kind == "grid":
            reward = gfnx.EasyHypergridRewardModule()
            env = gfnx.HypergridEnvironment(reward, dim=task.dims, side=task.side)
        else:
            likelihood = BGeScore(jnp.asarray(observations(task.dims)))
            reward = gfnx.DAGRewardModule(prior=UniformDAGPrior(task.dims), likelihood=likelihood)
            env = gfnx.DAGEnvironment(reward, task.dims)
        world, key = env.init(jax.random.PRNGKey(0)), jax.random.PRNGKey(0)
        inputs = int(jnp.size(env.get_obs(env.get_init_state(1), world)))
        network = eqx.nn.MLP(
            inputs, env.action_space.n, WIDTH, DEPTH, activation=jax.nn.leaky_relu, key=key
        )
        weights, static = eqx.partition(network, eqx.is_array)
        optimiser = optax.adam(RATE)
        back = jnp.zeros(env.backward_action_space.n)

        def logits(weights, seen):
            return eqx.combine(weights, static)(jnp.ravel(seen).astype(float))

        def draw(weights, num, key):
            def policy(key, seen, weights):
                return jax.vmap(logits, (None, 0))(weights, seen), {}

            return gfnx.utils.forward_rollout(key, num, policy, weights, env, world)

        def loss(flow, paths):
            forward = jax.vmap(jax.vmap(logits, (None, 0)), (None, 0))(flow["weights"], paths.obs)
            both = {
                "forward_logits": forward,
                "backward_logits": jnp.broadcast_to(back, (*forward.shape[:2], back.size)),
            }
            log_pf, log_pb = gfnx.utils.forward_trajectory_log_probs(
                env, paths.replace(info=both), world
            )
            log_reward = jnp.sum(jnp.where(paths.pad, 0.0, paths.log_gfn_reward), axis=1)
            return jnp.mean((flow["log_z"] + log_pf - log_pb - log_reward) ** 2)

        def update(_, state):
            flow, moments, key = state
            key, now = jax.random.split(key)
            paths, _ = draw(flow["weights"], task.batch, now)
            step, moments = optimiser.update(jax.grad(loss)(flow, paths), moments, flow)
            return optax.apply_updates(flow, step), moments, key

        self.batch = task.batch
        self._loop = jax.jit(
            lambda state, count: jax.lax.fori_loop(0, count, update, state), donate_argnums=0
        )
        self._lengths = jax.jit(lambda flow, key: draw(flow, DRAWS, key)[1]["trajectory_length"])
        self._initial, self._key, self._optimiser = weights, key, optimiser
        self.shift(0.0)
        self.parameters = sum(x.size for x in jax.tree.leaves(self._state[0]))

    def shift(self, offset: float) -> None:
        weights = eqx.tree_at(
            lambda n: n.layers[-1].bias, self._initial, replace_fn=lambda b: b.at[-1].add(offset)
        )
        flow = jax.tree.map(jnp.copy, {"weights": weights, "log_z": jnp.zeros(())})
        self._state = (flow, self._optimiser.init(flow), jnp.copy(self._key))

    def length(self) -> float:
        flow, _, key = self._state
        return float(self._lengths(flow["weights"], key).mean())

    def update(self, count: int) -> None:
        self._state = jax.block_until_ready(self._loop(self._state, jnp.array(count)))


if __name__ == "__main__":
    serve(Sampler, "gfnx", "jax", "equinox", "optax", "numpy")
