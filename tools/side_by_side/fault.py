"""The error that the command line shows without a trace."""


class Fault(Exception):
    """What the user is told: what was got and what was expected."""


def in_one_line(error: Exception) -> str:
    """An error as a row of the results has it: of a long text both ends."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else f'{text[:100]} ... {text[-195:]}'}"
