"""Factor graphs: models, files, elimination orders, exact and approximate inference."""

from .graph import FactorGraph as FactorGraph
from .graph import Scope as Scope
from .models import bayesian_network as bayesian_network
from .models import ising as ising
from .models import potts as potts
from .uai import read_evidence as read_evidence
from .uai import read_uai as read_uai
from .uai import write_uai as write_uai
