"""The error that the command line shows without a trace."""


class Fault(Exception):
    """What the user is told: what was got and what was expected."""
