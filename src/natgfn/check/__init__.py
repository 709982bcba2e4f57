"""Check that an environment keeps the promises of `natgfn.envs.AbstractEnv`."""

from .environment import check_environment as check_environment
from .findings import Finding as Finding
