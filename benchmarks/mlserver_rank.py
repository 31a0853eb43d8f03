"""The `rank` callable as an MLServer runtime; `benchmarks/servers.py` names it in its settings."""

from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.servers import joined_rank
from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Rank(MLModel):
    """Scores a batch of calls; MLServer joins calls along the first axis."""

    async def load(self) -> bool:
        """Load the version."""
        self._servable, self._layout, self._run = joined_rank(Path(self.settings.parameters.uri))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Score."""
        inputs = {one.name: self._array(one) for one in payload.inputs}
        outputs = [
            ResponseOutput(
                name=name,
                shape=list(values.shape),
                datatype="FP32",
                data=values.ravel().tolist(),
            )
            for name, values in self._run(inputs).items()
        ]
        return InferenceResponse(model_name=self.name, outputs=outputs)

    def _array(self, tensor: Any) -> np.ndarray:
        dtype = self._layout.inputs[tensor.name].dtype
        kind = object if dtype == "string" else dtype
        return np.array(list(tensor.data), kind).reshape(tensor.shape)
