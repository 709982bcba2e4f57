"""Metrics of a learned law against its target."""

from .distributions import expected_log_reward as expected_log_reward
from .distributions import jensen_shannon as jensen_shannon
from .distributions import kl_divergence as kl_divergence
from .distributions import modes_found as modes_found
from .distributions import total_variation as total_variation
from .draws import draw as draw
from .draws import draw_back as draw_back
from .draws import log_terminal_law as log_terminal_law
from .exact import METRICS as METRICS
from .exact import evaluate as evaluate
from .exact import judge as judge
from .messages import MESSAGE_METRICS as MESSAGE_METRICS
from .messages import message_marginals as message_marginals
from .messages import message_metrics as message_metrics
from .sampled import eubo as eubo
from .sampled import sampled_metrics as sampled_metrics
from .sampled import weight_metrics as weight_metrics
