r"""Certificates: numbers about operators that say how far to trust them.

- `pencil`: $\rho_\lambda$ and $\gamma_{B,\lambda}$ of operators, without a matrix; `tabular`:
  the same of tables, in closed form; `surrogate`: the same of matrices;
- `conditioning`: how small the curvature of a Fisher can be;
- `structured`: what structured occupancies cost the Fisher, step by step;
- `ceiling`: what $\rho_\lambda$ of a network cannot exceed, from the rows of a few states;
- `evidence`: what a bound and an identity are;
- `policy`: all of it for a policy in training; `sampled`: where its environment is not enumerated;
  `effort`: how much that may cost.

The paper's statements themselves, with random instances, are in `paper/` of the repository.
"""

from . import tabular as tabular
from .effort import Effort as Effort
from .evidence import Bound as Bound
from .evidence import Evidence as Evidence
from .evidence import Identity as Identity
from .inverses import nystrom as nystrom
from .operators import fisher_root as fisher_root
from .pencil import Estimate as Estimate
from .pencil import relative_error_estimate as relative_error_estimate
from .policy import certificate as certificate
from .policy import certify_states as certify_states
from .policy import reference_of as reference_of
from .structured import StructuredErrors as StructuredErrors
from .structured import structured_certificate as structured_certificate
from .structured import structured_errors as structured_errors
from .surrogate import coupling as coupling
from .surrogate import direction_bound as direction_bound
from .surrogate import direction_limit as direction_limit
from .surrogate import relative_error as relative_error
