"""`python -m natgfn.cli`, the same as `natgfn`."""

from .commands import main

main()
