"""Environments enumerated: tables of states and edges, and exact dynamic programming over them."""

from .enumerate import TooManyStates as TooManyStates
from .enumerate import enumerate_states as enumerate_states
from .programming import Residuals as Residuals
from .programming import backward_mass as backward_mass
from .programming import backward_sums as backward_sums
from .programming import constructive_flow as constructive_flow
from .programming import exact_residuals as exact_residuals
from .programming import leaving_order as leaving_order
from .programming import log_path_counts as log_path_counts
from .programming import occupancy as occupancy
from .programming import timed_occupancy as timed_occupancy
from .rows import Numbers as Numbers
from .rows import pack as pack
from .rows import unpack as unpack
from .space import StateSpace as StateSpace
from .space import require_space as require_space
