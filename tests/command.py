"""A command of the program, run in the tests' own process."""

from typer.testing import CliRunner

import hardmine.cli
from hardmine.errors import HardmineError


def run(*words, code=0):
    """stdout of a command in this process; a purposeful error becomes its message and exit code, as `main` does."""
    result = CliRunner().invoke(hardmine.cli.app, [str(w) for w in words])
    if isinstance(result.exception, HardmineError):
        assert result.exception.exit_code == code, result.exception
        return str(result.exception)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout
