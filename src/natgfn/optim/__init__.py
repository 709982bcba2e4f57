"""Update rules, as optax transformations."""

from .natural import by_part as by_part
from .natural import divergence_in_fisher as divergence_in_fisher
from .natural import fitted_natural_gradient as fitted_natural_gradient
from .natural import limit_divergence as limit_divergence
from .natural import natural_gradient as natural_gradient
from .natural import own_log_z as own_log_z
from .natural import proximal as proximal
from .natural import transformation as transformation
from .rules import AbstractRule as AbstractRule
from .rules import Adam as Adam
from .rules import Euclidean as Euclidean
from .rules import FisherAdam as FisherAdam
from .rules import Natural as Natural
from .rules import SampleSpace as SampleSpace
from .rules import check_limit as check_limit
from .rules import check_rates as check_rates
from .schedules import AbstractSchedule as AbstractSchedule
from .schedules import Cosine as Cosine
from .schedules import Linear as Linear
from .schedules import Rate as Rate
from .schedules import at as at
from .schedules import takes_steps as takes_steps
from .trust_region import TrustRegion as TrustRegion
from .trust_region import kl_trust_region as kl_trust_region
from .trust_region import levenberg_marquardt as levenberg_marquardt
