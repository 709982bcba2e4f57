"""Bayesian structure learning: from a table of observations to a posterior over graphs.

    import natgfn as ng

    table = ng.dag.load("data.csv", log=True)          # or a DataFrame, or a matrix
    prior = ng.dag.Prior(max_parents=3, forbid=[("Erk", "Raf")])
    found = ng.dag.exact_posterior(table, prior=prior)
    found = ng.dag.chains(table, prior=prior)          # Markov chains, for up to 64 variables
    found = ng.dag.fit(table, prior=prior)             # a trained sampler, for as many

    found.edge_marginals                   # DataFrame: row is source, column is target
    found.sample(1000), found.top(10)      # adjacency matrices
    found.ancestors(), found.markov_blanket("Erk"), found.effects(table), found.graph(0.5)
    found.plot("posterior.png")

`data` checks a table, `scores` says how well a child's data fit its parents, `priors` adds what
is known and gives the local log-weights of a law over graphs, and `exact` solves that law:
seconds for 11 variables, half a minute for 14, minutes for 16; 18 is where memory ends (8 GB).
`fit` trains a GFlowNet for it instead, from the head start of `guide`, and `sampler` is what it
returns, with an account of its errors: `found.quality()`, or `found.errors(exact)`. Beyond 8
variables it builds root partitions with the parents summed out over `candidates`; `mcmc` has
Markov chains over the same, a result of their own, what a sampler learns from, and, with another
seed, the evidence by which `trust` judges it.
`metrics` compares probabilities of edges with a graph or with each other.
"""

from ..envs import Dags as Dags
from ..policies import Transformer as Transformer
from . import graphs as graphs
from . import metrics as metrics
from .candidates import Candidates as Candidates
from .candidates import Weights as Weights
from .candidates import usual_number as usual_number
from .data import CONSENSUS as CONSENSUS
from .data import Data as Data
from .data import adjacency as adjacency
from .data import load as load
from .data import read_csv as read_csv
from .data import sachs as sachs
from .effects import Effects as Effects
from .effects import effects_of as effects_of
from .exact import ExactPosterior as ExactPosterior
from .exact import exact_posterior as exact_posterior
from .exact import solve as solve
from .export import graph_of as graph_of
from .export import write_dot as write_dot
from .export import write_graphml as write_graphml
from .fitting import BY_EDGES as BY_EDGES
from .fitting import TABULATED as TABULATED
from .fitting import by_edges as by_edges
from .fitting import fit as fit
from .fitting import fit_memory as fit_memory
from .fitting import known_partitions as known_partitions
from .fitting import posterior_of as posterior_of
from .fitting import setup_of as setup_of
from .fitting import wide_setup as wide_setup
from .guide import Guided as Guided
from .layers import exact_memory as exact_memory
from .mcmc import ChainPosterior as ChainPosterior
from .mcmc import chains as chains
from .mcmc import run_chains as run_chains
from .posterior import SAMPLES as SAMPLES
from .posterior import AbstractPosterior as AbstractPosterior
from .priors import PAPER_PENALTY as PAPER_PENALTY
from .priors import Prior as Prior
from .priors import log_weights as log_weights
from .sampler import Draws as Draws
from .sampler import SampledPosterior as SampledPosterior
from .sampler import draw as draw
from .scores import AbstractScore as AbstractScore
from .scores import BDeu as BDeu
from .scores import BGe as BGe
from .scores import local_scores as local_scores
from .scores import score_for as score_for
from .stability import Stability as Stability
from .stability import stability_of as stability_of
from .trust import Verdict as Verdict
from .trust import judge as judge
from .trust import judge_by_exact as judge_by_exact
from .trust import judge_chains as judge_chains
