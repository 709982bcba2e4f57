"""Metrics of a learned law against its target."""

from .distributions import expected_log_reward as expected_log_reward
from .distributions import jensen_shannon as jensen_shannon
from .distributions import kl_divergence as kl_divergence
from .distributions import modes_found as modes_found
from .distributions import total_variation as total_variation
from .evaluate import METRICS as METRICS
from .evaluate import evaluate as evaluate
from .evaluate import judge as judge
