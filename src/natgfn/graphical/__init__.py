"""Factor graphs: models, files, elimination orders, exact and approximate inference."""

from .graph import FactorGraph as FactorGraph
from .graph import Scope as Scope
from .models import bayesian_network as bayesian_network
from .models import ising as ising
from .models import potts as potts
