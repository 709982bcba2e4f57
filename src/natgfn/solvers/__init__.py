"""Solvers of damped Fisher systems, one a file."""

from .auto import Auto as Auto
from .base import AbstractSolver as AbstractSolver
from .base import require_positive as require_positive
from .block import Block as Block
from .block import BlockPseudoinverse as BlockPseudoinverse
from .block import solve_covariance as solve_covariance
from .block import solve_scores as solve_scores
from .cg import ConjugateGradients as ConjugateGradients
from .dense import Dense as Dense
from .diagonal import Diagonal as Diagonal
from .kfac import KFAC as KFAC
from .live import on_live_rows as on_live_rows
from .rows import Rows as Rows
from .sample_space import proximal_step as proximal_step
