"""Update rules, as optax transformations."""

from .damped_fisher import ControlledAdam as ControlledAdam
from .damped_fisher import DampedFisher as DampedFisher
from .damped_fisher import DecayedAdam as DecayedAdam
from .natural import by_part as by_part
from .natural import fitted_natural_gradient as fitted_natural_gradient
from .natural import limit_divergence as limit_divergence
from .natural import natural_gradient as natural_gradient
from .natural import own_log_z as own_log_z
from .natural import proximal as proximal
from .rules import AbstractRule as AbstractRule
from .rules import Adam as Adam
from .rules import Euclidean as Euclidean
from .rules import FisherAdam as FisherAdam
from .rules import Natural as Natural
from .rules import SampleSpace as SampleSpace
from .trust_region import kl_trust_region as kl_trust_region
from .trust_region import levenberg_marquardt as levenberg_marquardt
