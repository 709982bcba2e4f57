"""`python -m natgfn.cli`, the same as `natgfn`."""

from . import main

main()
