"""Errors that a person can act on."""


class NatgfnError(Exception):
    """Bad input or an unusable file: one line that says what was given and what to do.

    The command line prints it without a traceback and exits with code 2.
    """
