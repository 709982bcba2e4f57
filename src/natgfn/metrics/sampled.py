"""Metrics of a flow on any environment, enumerated or not, from samples. In nats."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..envs import AbstractEnv, CountsModes, HasDistance, HasTestSet, KnowsLogZ, State
from ..errors import require_whole
from ..policies import Flow
from .draws import (
    Draws,
    as_names,
    draw,
    draw_back,
    log_mean_exp,
    log_terminal_law,
    numbered,
    original,
    pick,
)


def sampled_metrics(
    env: AbstractEnv,
    flow: Flow,
    *,
    key: PRNGKeyArray,
    num: int = 512,
    paths: int = 10,
    test: int = 256,
    top: int = 100,
) -> dict[str, float]:
    r"""What samples say of a flow; `x_se` is the standard error of `x`.

    A number that is not defined is left out: a correlation with a constant or an infinity, the
    error of an infinity, a distance among fewer than two objects. A draw without reward makes
    `elbo` $-\infty$. Where the policy is no law, its probabilities being NaN, `elbo`, `log_z` and
    the residuals are NaN or $+\infty$, and nothing is said of the objects.

    Args:
        env: the environment.
        flow: what is judged; other parameters of it need no other program.
        key: of all that is drawn.
        num: trajectories from the forward policy, two at least.
        paths: trajectories back from each object of the test set.
        test: objects of the test set.
        top: how many of the best objects are looked at.

    Returns:
        Of the draws: `elbo`, the mean of $\log w$ (`draws.py`); `log_z`, the logarithm of the mean
        of $w$, with its error by the delta method; `effective_share`, the exact samples that a
        draw is worth: where these are few in all, the draws have missed most of $Z$, and the
        error of `log_z` does not know it; `learned_log_z`; `residual_median` and `residual_p90` of
        $|\log Z_\theta - \log w|$, each the value of a draw; `length` in steps; `mean_log_reward`;
        the number of `distinct` objects, and the mean `top_log_reward` of the best of them.

        Where the environment knows more: `path_kl`, $\log Z$ less `elbo`, the divergence of the
        trajectory law from $R(x)\, P_B(\tau \mid x) / Z$, which that of the terminal law cannot
        exceed; `top_diversity`, the mean distance between two of the best; `modes_drawn`, how
        many the draws find; `pearson` and `spearman`, the correlation of $\log R$ with the
        estimated $\log q$ over the test set. Its error is that of Fisher's transform, as if the
        $n$ objects were drawn at random: $(1 - r^2) / \sqrt{n - 3}$, and for ranks
        $\sqrt{1 + r^2 / 2}$ times that (Bonett and Wright, 2000).
    """
    for name, value, least in (("num", num, 2), ("paths", paths, 1), ("top", top, 1)):
        require_whole(name, value, least)
    draw_key, test_key = jax.random.split(key)
    draws = draw(env, flow, num, key=draw_key)
    found = _of_weights(draws.log_weights, float(flow.log_z))
    if isinstance(env, KnowsLogZ) and env.log_z is not None:
        found |= _mean("path_kl", float(env.log_z) - draws.log_weights)
    if not found["elbo"] < np.inf:
        return found
    known, objects = original(env, draws.objects)
    found |= _mean("length", draws.lengths) | _mean("mean_log_reward", draws.log_rewards)
    found |= _of_best(known, eqx.tree_at(lambda d: d.objects, draws, objects), top)
    if isinstance(known, CountsModes):
        found["modes_drawn"] = float(np.sum(_modes(known, objects)))
    if isinstance(known, HasTestSet):
        tested = numbered(env, known.test_set(test))
        found |= _correlations(*log_terminal_law(env, flow, tested, paths, key=test_key))
    return found


def eubo(
    env: AbstractEnv,
    flow: Flow,
    objects: State,
    weights: Float[np.ndarray, " n"] | None = None,
    *,
    key: PRNGKeyArray,
) -> dict[str, float]:
    r"""`eubo`, the mean of $\log w$ over objects with one trajectory back from each, and its error.

    If the objects are independent draws from the target $R / Z$, or `weights` correct for the law
    they were drawn from, its expectation is an upper bound on $\log Z$: it exceeds it by the
    divergence of $R(x)\, P_B(\tau \mid x) / Z$ from the trajectory law. With any other objects, as
    those of a replay buffer, it bounds nothing, and is only a proxy.

    Args:
        env: the environment.
        flow: what is judged.
        objects: terminal states of `env` along a leading axis, two at least.
        weights: what each counts, up to a factor; all the same unless given.
        key: of the trajectories.
    """
    log_weights = draw_back(env, flow, objects, key=key).log_weights
    if len(log_weights) < 2:
        raise ValueError("objects must be two at least, for a standard error; got 1")
    if weights is not None and not (np.all(weights >= 0) and 0 < np.sum(weights) < np.inf):
        raise ValueError("weights must be finite, none negative, and not all zero")
    return _mean("eubo", log_weights, weights)


def weight_metrics(log_weights: Float[np.ndarray, " n"]) -> dict[str, float]:
    r"""`elbo`, `log_z`, their errors and `effective_share`, as `sampled_metrics` has them."""
    log_z = float(log_mean_exp(log_weights))
    found = _mean("elbo", log_weights) | {"log_z": log_z}
    if np.isfinite(log_z):
        relative = np.exp(log_weights - log_z)  # their mean is one
        found["log_z_se"] = _mean("w", relative)["w_se"]
        found["effective_share"] = float(1 / np.mean(relative**2))
    return found


def _of_weights(log_weights: Float[np.ndarray, " n"], learned: float) -> dict[str, float]:
    found = weight_metrics(log_weights) | {"learned_log_z": learned}
    sizes = np.abs(learned - log_weights)
    median, p90 = np.quantile(sizes, [0.5, 0.9], method="inverted_cdf").tolist()
    return found | {"residual_median": median, "residual_p90": p90}


def _of_best(env: AbstractEnv, draws: Draws, top: int) -> dict[str, float]:
    """Of the best distinct objects; of equals, those that were drawn first."""
    distinct = np.sort(np.unique(as_names(draws.objects), return_index=True)[1])
    best = distinct[np.argsort(-draws.log_rewards[distinct], stable=True)][:top]
    found = {
        "distinct": float(len(distinct)),
        "top_log_reward": float(np.mean(draws.log_rewards[best])),
    }
    if isinstance(env, HasDistance) and len(best) > 1:
        padded = np.resize(best, min(top, len(draws.lengths)))  # one shape, so one program
        between = np.asarray(_distances(env, pick(draws.objects, padded)), np.float64)
        total = between[: len(best), : len(best)].sum()
        found["top_diversity"] = float(total / (len(best) * (len(best) - 1)))
    return found


@eqx.filter_jit
def _distances(env: HasDistance, objects: State) -> Float[Array, "n n"]:
    return jax.lax.map(lambda one: jax.vmap(lambda x: env.distance(one, x))(objects), objects)


@eqx.filter_jit
def _modes(env: CountsModes, objects: State) -> Bool[Array, " modes"]:
    return jnp.any(jax.lax.map(env.finds, objects, batch_size=256), axis=0)


def _mean(
    name: str, values: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"] | None = None
) -> dict[str, float]:
    """A weighted mean, and its standard error if it is finite."""
    counts = np.ones(len(values)) if weights is None else weights
    values = np.where(counts > 0, values, 0.0)
    mean = float(np.sum(counts * values) / np.sum(counts))
    if not np.isfinite(mean):
        return {name: mean}
    squares = np.sum((counts * (values - mean)) ** 2) * len(values) / (len(values) - 1)
    return {name: mean, f"{name}_se": float(np.sqrt(squares) / np.sum(counts))}


def _correlations(
    log_q: Float[np.ndarray, " n"], log_rewards: Float[np.ndarray, " n"]
) -> dict[str, float]:
    for values in (log_q, log_rewards):
        rounding = 1e-5 * max(1.0, np.abs(values).max())  # of single precision
        if len(values) <= 3 or np.isinf(values).any() or np.ptp(values) <= rounding:
            return {}
    from scipy.stats import rankdata  # takes long to import

    r = float(np.corrcoef(log_q, log_rewards)[0, 1])
    rank = float(np.corrcoef(rankdata(log_q), rankdata(log_rewards))[0, 1])
    scale = np.sqrt(len(log_q) - 3)
    return {
        "pearson": r,
        "pearson_se": float((1 - r**2) / scale),
        "spearman": rank,
        "spearman_se": float((1 - rank**2) * np.sqrt(1 + rank**2 / 2) / scale),
    }
