"""The exception tree: every failure that a user can cause or fix.

    MultigateError
    ├── ConfigError      a configuration file: unknown key, wrong type, contradiction
    ├── DataError        logs and examples: missing files, wrong columns, too many rejects
    ├── ModelError       training, evaluation and checkpoints
    ├── ExportError      a version that cannot be built or does not pass its checks
    ├── ServingError     the server's start-up and the client
    └── RunError         the nightly run and publication: guards, locks, missing versions

The command prints the message as one line and exits with status 2; the server maps request errors
to gRPC status in one place (`serving.core.status`). A message says what is wrong, where, what was
expected, what was received and what to do.
"""


def one_line(error: BaseException, most: int = 300) -> str:
    """An error's message in one line of at most that many characters; its kind where it has none.

    Libraries put several lines, and whatever bytes they were given, into theirs. Messages of ours
    are made to be read as they are, and are not cut.
    """
    try:
        message = str(error)
    except Exception:  # a message that cannot be made must not hide the error
        message = ""
    line = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    line = line or type(error).__name__
    if len(line) <= most or isinstance(error, MultigateError):
        return line
    return line[: most - 1] + "…"


class MultigateError(Exception):
    """Base class; the user reads its message as it is."""


class ConfigError(MultigateError):
    """A configuration that cannot be used."""


class DataError(MultigateError):
    """Logs or examples that cannot be used."""


class ModelError(MultigateError):
    """Training, evaluation or a checkpoint failed."""


class ExportError(MultigateError):
    """No version was published."""


class ServingError(MultigateError):
    """The server could not start, or the client could not be answered."""


class RunError(MultigateError):
    """A nightly run stopped, or a version could not be published or withdrawn."""
