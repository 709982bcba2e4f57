"""`python -m natgfn.cli`, the same as `natgfn`."""

from .main import main

main()
