"""Solvers of damped Fisher systems, one a file."""

from .auto import Auto as Auto
from .base import AbstractSolver as AbstractSolver
from .base import require_positive as require_positive
from .block import Block as Block
from .block import BlockPseudoinverse as BlockPseudoinverse
from .cg import ConjugateGradients as ConjugateGradients
from .dense import Dense as Dense
from .diagonal import Diagonal as Diagonal
from .kfac import KFAC as KFAC
from .rows import Rows as Rows
from .sample_space import proximal_step as proximal_step
from .sample_space import residual_gram as residual_gram
from .sample_space import score_gram as score_gram
from .sample_space import tabular_gram as tabular_gram
