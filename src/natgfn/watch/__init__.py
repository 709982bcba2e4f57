"""Watchers: what is looked at between two compiled chunks of a run. One a file."""

from .base import AbstractWatcher as AbstractWatcher
from .base import Line as Line
from .certificate import CERTIFICATE as CERTIFICATE
from .certificate import Certificate as Certificate
from .exact import Exact as Exact
from .messages import Messages as Messages
from .sampled import Sampled as Sampled
from .snapshots import Snapshots as Snapshots
