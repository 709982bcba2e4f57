"""Factor graphs: models, files, elimination orders, exact and approximate inference."""

from .graph import FactorGraph as FactorGraph
from .graph import Scope as Scope
