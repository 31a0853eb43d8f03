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
