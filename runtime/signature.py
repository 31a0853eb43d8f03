"""A signature of a loaded SavedModel: arrays in, arrays out."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multigate.runtime.cores import cores
from multigate.runtime.dtypes import TensorSpec

if TYPE_CHECKING:
    from multigate.runtime.session import Session


class Signature:
    """A signature of a session.

    Attributes:
        inputs: dtype and shape of each input, in the order of their names.
        outputs: the same of each output.
    """

    def __init__(self, definition: Any, session: "Session") -> None:
        """Find the signature's tensors.

        Args:
            definition: its SignatureDef.
            session: the session that has loaded its graph.

        Raises:
            ModelRuntimeError: the graph lacks one of its tensors.
        """
        self.inputs = {k: TensorSpec.of(info) for k, info in sorted(definition.inputs.items())}
        self.outputs = {k: TensorSpec.of(info) for k, info in sorted(definition.outputs.items())}
        self._run = session.runner(definition)

    def __call__(
        self, inputs: dict[str, np.ndarray], timeout: float | None = None
    ) -> dict[str, np.ndarray]:
        """Run the graph; releases the GIL meanwhile.

        Args:
            inputs: arrays by name; those of other names are not read.
            timeout: seconds after which the run is ended.

        Raises:
            ModelRuntimeError: see `runtime.errors`.
        """
        outputs = self._run(*[inputs[key] for key in self.inputs], timeout=timeout)
        return dict(zip(self.outputs, outputs, strict=True))


def load_signatures(folder: Path) -> dict[str, Signature]:
    """Load a SavedModel for many rows at once: every core takes part in a run.

    Its memory is freed with the last of the signatures.

    Raises:
        ModelRuntimeError: the folder has no SavedModel, or it is damaged.
    """
    from multigate.runtime.session import Session  # with TensorFlow's library

    threads = max(1, math.ceil(cores()))
    session = Session(folder, (threads, threads))
    return {
        name: Signature(definition, session)
        for name, definition in session.definitions.items()
        if not name.startswith("__")
    }
