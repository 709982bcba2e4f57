"""The command line."""

from .main import app as app
from .main import main as main
