"""Factor graphs: models, files, elimination orders, exact and approximate inference."""

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
from .order import assignment_order as assignment_order
from .order import separators as separators
from .order import table_size as table_size
from .order import width as width
from .returns import Returns as Returns
from .returns import expected_returns as expected_returns
from .tree import JunctionTree as JunctionTree
from .tree import TooWide as TooWide
from .tree import junction_tree as junction_tree
