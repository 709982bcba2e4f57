"""Training: a run as a value, the loop around the compiled step, and what it leaves on disk."""

from . import recertify as recertify
from .config import catalogue as catalogue
from .config import construct as construct
from .config import fields as fields
from .config import load_setup as load_setup
from .config import named as named
from .config import put as put
from .config import read_settings as read_settings
from .config import setup_from as setup_from
from .loop import progress_bar as progress_bar
from .loop import reopen as reopen
from .loop import run as run
from .loop import train as train
from .record import Record as Record
from .record import describe as describe
from .record import git_state as git_state
from .record import numbers as numbers
from .record import plain as plain
from .record import versions as versions
from .result import Run as Run
from .setup import Setup as Setup
from .setup import decide as decide
from .store import CHECKPOINT as CHECKPOINT
from .store import RECORD as RECORD
from .store import read_header as read_header
from .store import snapshot_path as snapshot_path
