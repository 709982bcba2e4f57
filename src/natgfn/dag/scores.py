r"""Scores of graphs: how well the data fit a child with its parents.

A score decomposes over children (`eq:bge_decomposition`),
$\log p(D \mid G) = \sum_j s_j(\mathrm{Pa}_j)$. The scores here are score-equivalent: they come
from one law $p(D_S)$ of the data of every set of variables $S$, through
$$s_j(\mathrm{Pa}) = \log p(D_{\mathrm{Pa} \cup j}) - \log p(D_{\mathrm{Pa}}),$$
so Markov-equivalent graphs get the same score, and a score has only to give $\log p(D_S)$.

Where a variable was set from outside, its value owes nothing to its parents: those rows are left
out of its own $s_j$ and of no other, so both terms are of the rows $D^{(j)}$ that remain (Cooper
and Yoo, 1999). Markov-equivalent graphs may then differ.

Everything is float64 NumPy: a table is made once and looked up afterwards.
"""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln

from .data import Data
from .subsets import check_memory, indicators, subset_totals, table_bytes

_CHUNK = 2**14


class AbstractScore(eqx.Module):
    """The law of the data of each set of variables."""

    @abstractmethod
    def log_marginals(
        self, data: Data, sets: Int[np.ndarray, " n"], child: int | None = None
    ) -> Float[np.ndarray, " n"]:
        r"""$\log p(D_S)$ for each set of variables, given as bits; of $D^{(j)}$ for a child."""

    def around(
        self,
        data: Data,
        child: int,
        candidates: Int[np.ndarray, " K"],
        others: Int[np.ndarray, " others"],
    ) -> Float[np.ndarray, "slots sets"]:
        r"""$s_j(S)$ and $s_j(S \cup s)$ of all sets $S$ of candidates, $s$ one of the others."""
        bits = np.int64(1) << np.arange(len(data.names))
        sets = subset_totals(bits[candidates])
        sets = np.append(0, bits[others])[:, None] | sets
        own = self.log_marginals(data, (sets | bits[child]).ravel(), child)
        return (own - self.log_marginals(data, sets.ravel(), child)).reshape(sets.shape)


def local_scores(score: AbstractScore, data: Data) -> Float[np.ndarray, "d sets"]:
    r"""$s_j(\mathrm{Pa})$ for each child and set; $-\infty$ where a child is its own parent."""
    count = len(data.names)
    check_memory(f"a table of local scores of {count} variables", table_bytes(count))
    sets = np.arange(2**count)
    everywhere = score.log_marginals(data, sets)
    table = np.full((count, len(sets)), -np.inf)
    for child in range(count):
        some = data.intervened is not None and np.any(data.intervened[:, child])
        marginals = score.log_marginals(data, sets, child) if some else everywhere
        others = sets[sets >> child & 1 == 0]
        table[child, others] = marginals[others | 1 << child] - marginals[others]
    return table


class Wishart(NamedTuple):
    """What BGe knows after the data; the numbers are for sets of every size, from none."""

    prior: Float[np.ndarray, "d d"]
    """$T$."""
    posterior: Float[np.ndarray, "d d"]
    """$R$."""
    before: Float[np.ndarray, " sizes"]
    r"""$\alpha_w - d + p$."""
    after: Float[np.ndarray, " sizes"]
    """And with $N$."""
    constant: Float[np.ndarray, " sizes"]
    """All terms without a determinant."""


class BGe(AbstractScore):
    r"""The Gaussian score with a normal-Wishart prior (Geiger and Heckerman, corrected in 2014).

    With $N$ rows, $d$ variables and $p = |S|$,
    $$\log p(D_S) = \tfrac p2 \log \tfrac{\alpha_\mu}{N + \alpha_\mu} - \tfrac{Np}2 \log \pi
      + \log \frac{\Gamma_p((N + \alpha_w - d + p)/2)}{\Gamma_p((\alpha_w - d + p)/2)}
      + \tfrac{\alpha_w - d + p}2 \log |T_{SS}|
      - \tfrac{N + \alpha_w - d + p}2 \log |R_{SS}|,$$
    $$R = T + \sum_n (x_n - \bar x)(x_n - \bar x)^\top
      + \tfrac{N \alpha_\mu}{N + \alpha_\mu} (\bar x - \mu_0)(\bar x - \mu_0)^\top.$$

    The defaults are the paper's (`app:sachs_dag_details`).

    Attributes:
        mean: $\mu_0$, one number or one for each variable.
        mean_weight: $\alpha_\mu > 0$.
        freedom: $\alpha_w > d - 1$; $d + 2$ unless given.
        scale: $T$, positive definite, or $t$ for $T = tI$;
            $t = \alpha_\mu (\alpha_w - d - 1) / (\alpha_\mu + 1)$ unless given.
    """

    mean: float | Float[np.ndarray, " d"] = 0.0
    mean_weight: float = 1.0
    freedom: float | None = None
    scale: float | Float[np.ndarray, "d d"] | None = None

    def __check_init__(self):
        if not self.mean_weight > 0:
            raise ValueError(f"mean_weight must be positive, got {self.mean_weight}")

    def log_marginals(
        self, data: Data, sets: Int[np.ndarray, " n"], child: int | None = None
    ) -> Float[np.ndarray, " n"]:
        law = self.law(data, child)
        size = np.bitwise_count(sets.view(np.uint64)).astype(np.int64)
        return (
            law.constant[size]
            + law.before[size] / 2 * _log_determinants(law.prior, sets)
            - law.after[size] / 2 * _log_determinants(law.posterior, sets)
        )

    def around(
        self,
        data: Data,
        child: int,
        candidates: Int[np.ndarray, " K"],
        others: Int[np.ndarray, " others"],
    ) -> Float[np.ndarray, "slots sets"]:
        """By elimination: no determinant is computed twice."""
        law = self.law(data, child)
        size = np.bitwise_count(np.arange(1 << len(candidates))) + np.zeros((1 + len(others), 1))
        size[1:] += 1
        size = size.astype(np.int64)
        found = law.constant[size + 1] - law.constant[size]
        for matrix, degrees, sign in ((law.prior, law.before, 1), (law.posterior, law.after, -1)):
            log_parents, log_child = _eliminate(matrix, child, candidates, others)
            # As each degree is one more than the one before, determinants of parents remain.
            found += sign / 2 * (degrees[size + 1] * log_child + log_parents)
        return found

    def law(self, data: Data, child: int | None = None) -> Wishart:
        """What a table, or those of its rows that tell of a child, says of every set."""
        if data.discrete:
            raise ValueError("BGe is for continuous data, got discrete data: use BDeu")
        values = data.rows_of(child)
        rows, count = values.shape
        freedom = count + 2.0 if self.freedom is None else self.freedom
        if not freedom > count - 1:
            raise ValueError(f"freedom must exceed d - 1 = {count - 1}, got {freedom}")
        prior = self._scale(count, freedom)
        shift = values.mean(axis=0) - self.mean
        centred = values - values.mean(axis=0)
        shrink = rows * self.mean_weight / (rows + self.mean_weight)
        posterior = prior + centred.T @ centred + shrink * np.outer(shift, shift)

        before = freedom - count + np.arange(count + 1)
        after = before + rows
        size = np.arange(count + 1)
        # Of p gamma functions the last arguments are those of p - 1.
        gammas = gammaln((after[0] + size) / 2) - gammaln((before[0] + size) / 2)
        gammas[0] = 0.0
        constant = np.cumsum(gammas) - rows * size / 2 * np.log(np.pi)
        constant += size / 2 * np.log(self.mean_weight / (rows + self.mean_weight))
        return Wishart(prior, posterior, before, after, constant)

    def _scale(self, count: int, freedom: float) -> Float[np.ndarray, "d d"]:
        scale = self.scale
        if scale is None:
            scale = self.mean_weight * (freedom - count - 1) / (self.mean_weight + 1)
        matrix = scale * np.eye(count) if np.ndim(scale) == 0 else np.asarray(scale)
        if matrix.shape != (count, count) or not np.linalg.eigvalsh(matrix).min() > 0:
            raise ValueError(
                f"scale must be positive, or a positive definite {count} x {count} matrix, got "
                f"{' '.join(str(scale).split())}; its default needs freedom > d + 1"
            )
        return matrix


def _log_determinants(
    matrix: Float[np.ndarray, "d d"], sets: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Of the principal submatrix of each set; sets of one size are factorised together."""
    result = np.zeros(len(sets))
    sizes = np.bitwise_count(sets.view(np.uint64))
    for size in np.unique(sizes[sizes > 0]):
        (chosen,) = np.nonzero(sizes == size)
        for start in range(0, len(chosen), _CHUNK):
            rows = chosen[start : start + _CHUNK]
            index = np.nonzero(indicators(sets[rows], len(matrix)))[1].reshape(-1, size)
            blocks = matrix[index[:, :, None], index[:, None, :]]
            result[rows] = np.linalg.slogdet(blocks)[1]
    return result


def _eliminate(
    matrix: Float[np.ndarray, "d d"],
    child: int,
    candidates: Int[np.ndarray, " K"],
    others: Int[np.ndarray, " others"],
) -> tuple[Float[np.ndarray, "slots sets"], Float[np.ndarray, "slots sets"]]:
    r"""$\log |M_{PP}|$ and $\log M_{jj \mid P}$ of the parents $P$ of `AbstractScore.around`.

    One candidate after another is left out or eliminated. What is kept of the Schur complements are
    the block of the child and the candidates that are left, its rows for other variables, and
    their diagonal.
    """
    order = np.append(child, candidates)
    block, rows = matrix[np.ix_(order, order)][None], matrix[np.ix_(others, order)][None]
    diagonal, log_sets = matrix[others, others][None], np.zeros(1)
    for _ in candidates:
        pivot, column, across = block[:, 1, 1], block[:, :, 1], rows[:, :, 1]
        scaled = column / pivot[:, None]
        parts = (
            (block, block - column[:, :, None] * scaled[:, None]),
            (rows, rows - across[:, :, None] * scaled[:, None]),
            (diagonal, diagonal - across**2 / pivot[:, None]),
            (log_sets, log_sets + np.log(pivot)),
        )
        block, rows, diagonal, log_sets = (np.concatenate(pair) for pair in parts)
        block = np.delete(np.delete(block, 1, axis=1), 1, axis=2)
        rows = np.delete(rows, 1, axis=2)
    alone, other, both = block[:, 0, 0], diagonal.T, rows[:, :, 0].T
    log_parents = np.vstack([log_sets, log_sets + np.log(other)])
    return log_parents, np.log(np.vstack([alone, alone - both**2 / other]))


class BDeu(AbstractScore):
    r"""The Dirichlet score of discrete data with a uniform prior of one equivalent sample size.

    With $q_S$ the number of joint levels of $S$ and $n_c$ the rows with levels $c$,
    $$\log p(D_S) = \log \frac{\Gamma(\alpha)}{\Gamma(\alpha + N)}
      + \sum_{c : n_c > 0} \log \frac{\Gamma(\alpha / q_S + n_c)}{\Gamma(\alpha / q_S)}.$$

    Attributes:
        sample_size: $\alpha > 0$.
    """

    sample_size: float = 1.0

    def __check_init__(self):
        if not self.sample_size > 0:
            raise ValueError(f"sample_size must be positive, got {self.sample_size}")

    def log_marginals(
        self, data: Data, sets: Int[np.ndarray, " n"], child: int | None = None
    ) -> Float[np.ndarray, " n"]:
        if not data.discrete:
            raise ValueError("BDeu is for discrete data, got continuous data: use BGe")
        codes = data.rows_of(child).astype(np.int64)
        levels = data.values.max(axis=0).astype(np.int64) + 1
        whole = gammaln(self.sample_size) - gammaln(self.sample_size + len(codes))
        result = np.empty(len(sets))
        for row, members in enumerate(indicators(sets, len(levels)).astype(bool)):
            share = self.sample_size / np.prod(levels[members], dtype=float)
            counts = _counts(codes[:, members], levels[members])
            result[row] = whole + np.sum(gammaln(share + counts) - gammaln(share))
        return result


def _counts(
    codes: Int[np.ndarray, "rows size"], levels: Int[np.ndarray, " size"]
) -> Int[np.ndarray, " seen"]:
    """How often each joint level is seen, without those that are not."""
    joint, reach = np.zeros(len(codes), np.int64), 1
    for column, number in zip(codes.T, levels, strict=True):
        if reach * int(number) > 2**62:  # renumber those that are seen
            joint = np.unique(joint, return_inverse=True)[1]
            reach = len(codes)
        joint, reach = joint * number + column, reach * int(number)
    return np.unique(joint, return_counts=True)[1]


def score_for(data: Data, score: AbstractScore | str | None) -> AbstractScore:
    """A score, by its name if it has the defaults, or the one for the kind of data."""
    if isinstance(score, AbstractScore):
        return score
    if score not in ("bge", "bdeu", None):
        raise ValueError(f"score must be 'bge', 'bdeu' or a score, got {score!r}")
    return BDeu() if score == "bdeu" or (score is None and data.discrete) else BGe()
