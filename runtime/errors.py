"""Failures of TensorFlow as our exceptions, by the code of its status.

ModelRuntimeError               (a ServingError) any other failure
├── RefusedInputError           the graph refuses the values, or their dtype or shape
├── RunTimeoutError             the run took longer than it was given
└── OutOfMemoryError            a tensor of the run does not fit into memory
"""

from multigate.configs.errors import ServingError


class ModelRuntimeError(ServingError):
    """TensorFlow cannot load or run a graph."""


class RefusedInputError(ModelRuntimeError):
    """The graph refuses the values of a run, or their dtype or shape."""


class RunTimeoutError(ModelRuntimeError):
    """A run took longer than it was given."""


class OutOfMemoryError(ModelRuntimeError):
    """A tensor of a run does not fit into memory."""


_KINDS = {3: RefusedInputError, 4: RunTimeoutError, 8: OutOfMemoryError}
"""By TF_Code: INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED."""


def error_of(code: int, message: str) -> ModelRuntimeError:
    """The exception for a status that is not OK."""
    return _KINDS.get(code, ModelRuntimeError)(message)
