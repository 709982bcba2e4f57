r"""Whether an answer can be used: one verdict, from evidence on both sides.

What a sampler draws cannot show what it never draws: a sampler that has lost modes may have a large
effective sample size. So it is compared with Markov chains that had no part in its training:

- in the probability of every edge;
- in $\log w = \log R + \log P_B - \log P_F$. Its mean over the sampler's own draws, the ELBO, is
  at most $\log Z$; its mean over what chains found, along paths drawn backwards, the EUBO, is at
  least $\log Z$ if they have reached their law. Both are equal only where the sampler is exact,
  and the EUBO is large where it is blind.

Chains are evidence only as far as they agree with each other: $\hat R$ and the standard error
of every edge. And neither sees graphs that the candidates leave out, which is estimated apart.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..envs import Dag
from ..metrics import eubo
from . import graphs as of_graphs
from .candidates import Candidates
from .exact import ExactPosterior
from .mcmc import ChainPosterior
from .metrics import largest_error, mean_error
from .sampler import SampledPosterior

EDGE, R_HAT, ERROR, GAP = 0.02, 1.05, 0.01, 5.0
"""What may not be exceeded: a difference between probabilities of an edge, $\\hat R$ of an edge,
its standard error among ladders, and EUBO less ELBO in nats."""

OBJECTS = 2_000
"""Of the chains, for the EUBO."""


class Verdict(NamedTuple):
    """Whether to use an answer."""

    word: Literal["exact", "agrees", "do not use yet"]
    why: tuple[str, ...]
    """What speaks against it, each a sentence; or what it rests on."""

    def __str__(self) -> str:
        return f"{self.word}: {'; '.join(self.why)}"


def judge_by_exact(found: SampledPosterior, exact: ExactPosterior) -> Verdict:
    """Of a trained sampler, where the exact posterior is known."""
    error = largest_error(found.edge_marginals.to_numpy(), exact.edge_marginals.to_numpy())
    why = f"no edge is further than {error:.2g} from the exact posterior"
    if error <= EDGE:
        return Verdict("agrees", (why,))
    return Verdict("do not use yet", (f"an edge is {error:.2g} from the exact posterior",))


def judge_chains(found: ChainPosterior) -> Verdict:
    """Of chains alone: whether they agree with each other."""
    quality = found.quality()
    against = _of_chains(quality)
    if against:
        return Verdict("do not use yet", tuple(against))
    error = quality["largest_error_of_an_edge"]
    return Verdict(
        "agrees",
        (f"{len(found.edges)} independent ladders, to a standard error of {error:.2g} an edge",),
    )


def compare(found: SampledPosterior, evidence: ChainPosterior) -> dict[str, float]:
    """The numbers of both sides; EUBO and ELBO of the seed for which they are furthest apart.

    `largest_` and `mean_difference_from_chains` are those of the sampler's probabilities of
    edges, `largest_corrected_difference_from_chains` that of the importance-corrected ones.
    """
    chains = evidence.edge_marginals.to_numpy()
    plain, corrected = found.edge_marginals.to_numpy(), found.corrected_marginals.to_numpy()
    sides = _sides(found, evidence)
    lower, upper = sides[np.argmax(sides[:, 1] - sides[:, 0])]
    return {
        "elbo": float(lower),
        "eubo": float(upper),
        "eubo_less_elbo": float(upper - lower),
        "largest_difference_from_chains": largest_error(plain, chains),
        "mean_difference_from_chains": mean_error(plain, chains),
        "largest_corrected_difference_from_chains": largest_error(corrected, chains),
    }


def judge(found: SampledPosterior, evidence: ChainPosterior) -> tuple[Verdict, dict[str, float]]:
    """Of a trained sampler, beside chains that had no part in its training; and the numbers."""
    numbers, quality = compare(found, evidence), evidence.quality()
    numbers |= {f"chains_{name}": value for name, value in quality.items()}
    against = _of_chains(quality)
    apart = numbers["largest_difference_from_chains"]
    if not apart <= EDGE:
        against.append(f"an edge differs by {apart:.2g} from independent chains")
    if len(found.flows) > 1:
        seeds = float(np.ptp(found.by_seed(), axis=0).max())
        numbers["largest_difference_between_seeds"] = seeds
        if not seeds <= 2 * EDGE:
            against.append(f"seeds differ by {seeds:.2g} in an edge")
    if not numbers["eubo_less_elbo"] <= GAP:
        against.append(
            f"log Z is between {numbers['elbo']:.5g} and {numbers['eubo']:.5g}, more than {GAP:g} "
            "nats apart: the sampler is blind to part of the posterior, or strays from it"
        )
    if against:
        return Verdict("do not use yet", tuple(against)), numbers
    why = f"no edge differs by more than {apart:.2g} from independent chains"
    return Verdict("agrees", (why,)), numbers


def _of_chains(quality: dict[str, float]) -> list[str]:
    """What speaks against chains as evidence."""
    against = []
    if not quality["largest_r_hat"] <= R_HAT:
        against.append(
            f"independent chains have not met: R-hat of an edge is {quality['largest_r_hat']:.3g}"
        )
    if not quality["largest_error_of_an_edge"] <= ERROR:
        error = quality["largest_error_of_an_edge"]
        against.append(f"chains know an edge only to a standard error of {error:.2g}")
    if not quality["missed_of_an_edge"] <= EDGE:
        moved = quality["missed_of_an_edge"]
        against.append(
            f"parents that are no candidates would change an edge by about {moved:.2g}: raise the "
            "number of candidates, or the penalty of an edge"
        )
    return against


def _sides(found: SampledPosterior, evidence: ChainPosterior) -> Float[np.ndarray, "seeds 2"]:
    """ELBO and EUBO of each seed, relative to the empty graph."""
    target = found.target
    if isinstance(target, Candidates):
        env, objects = target.env, evidence.partitions(OBJECTS)
    else:
        env, objects = target, _as_objects(evidence.sample(OBJECTS))
    lower = np.array_split(found.draws.log_weights, len(found.flows))
    upper = [eubo(env, flow, objects, key=jax.random.key(0))["eubo"] for flow in found.flows]
    return np.stack([[x.mean() for x in lower], np.array(upper) + found.offset], axis=1)


def _as_objects(graphs: np.ndarray) -> Dag:
    """Graphs as terminal states of `envs.Dags`."""
    reached = np.swapaxes(of_graphs.ancestors(graphs), 1, 2) | np.eye(graphs.shape[1], dtype=bool)
    return Dag(jnp.asarray(graphs > 0), jnp.asarray(reached), jnp.ones(len(graphs), bool))
