"""Factor graphs: models, files, elimination orders, exact and approximate inference."""

from ..cache import keep_programs
from .beliefs import Wiring as Wiring
from .beliefs import check_converged as check_converged
from .beliefs import loopy as loopy
from .beliefs import propagate as propagate
from .contexts import Contexts as Contexts
from .exact import MOST_ENTRIES as MOST_ENTRIES
from .exact import Exact as Exact
from .exact import assigned_factors as assigned_factors
from .exact import infer as infer
from .exact import log_partition as log_partition
from .exact import possible_values as possible_values
from .exact import sum_over_values as sum_over_values
from .graph import FactorGraph as FactorGraph
from .graph import Scope as Scope
from .models import bayesian_network as bayesian_network
from .models import ising as ising
from .models import potts as potts
from .order import assignment_order as assignment_order
from .order import separators as separators
from .order import table_size as table_size
from .order import width as width
from .returns import Returns as Returns
from .returns import expected_returns as expected_returns
from .tree import JunctionTree as JunctionTree
from .tree import TooWide as TooWide
from .tree import junction_tree as junction_tree
from .uai import read_evidence as read_evidence
from .uai import read_uai as read_uai
from .uai import write_uai as write_uai

# The first folder that compiles, which all others import.
keep_programs()
