r"""Certificates: the paper's propositions and bounds as numbers.

- `evidence`: what a bound and an identity are;
- `geometry`, `trajectories`, `conditioning`, `surrogate`, `realisability`, `consistency`: the
  statements, each a small function that names the paper's label;
- `statements`: all of them with random instances, for tests and the results page;
- `pencil`: $\rho_\lambda$ and $\gamma_{B,\lambda}$ of operators, without a matrix; `tabular`:
  the same of tables, in closed form;
- `ceiling`: what $\rho_\lambda$ of a network cannot exceed, from the rows of a few states;
- `certificate`: all of it for a policy in training.
"""

from .certificate import Effort as Effort
from .certificate import certificate as certificate
from .evidence import Bound as Bound
from .evidence import Identity as Identity
from .pencil import Estimate as Estimate
from .pencil import fisher_root as fisher_root
from .pencil import nystrom as nystrom
from .pencil import relative_error_estimate as relative_error_estimate
from .statements import STATEMENTS as STATEMENTS
from .surrogate import coupling as coupling
from .surrogate import direction_bound as direction_bound
from .surrogate import relative_error as relative_error
