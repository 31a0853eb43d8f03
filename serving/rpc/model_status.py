"""TensorFlow Serving's ModelService: the state of each version, and another set of models."""

from collections.abc import Sequence
from typing import Any, Protocol

from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
)

from multigate.configs.errors import ServingError
from multigate.serving.core.loop import Threads
from multigate.serving.core.status import (
    LOG,
    DrainingError,
    InvalidRequestError,
    RequestError,
    WrongStateError,
)
from multigate.serving.rpc.prediction import requested
from multigate.serving.versions.manager import Record
from multigate.serving.versions.model_config import ModelConfig, model_configs
from multigate.serving.versions.models import Models

_UNKNOWN = 2  # google.rpc.Code: the version failed; the message says why


class Workers(Protocol):
    """All processes of a server that has several."""

    def apply(self, configs: Sequence[ModelConfig]) -> None:
        """Serve these models in all of them, or change nothing."""

    def known(self, name: str) -> Sequence[dict[int, Record]]:
        """State of a model's versions in each."""


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus and HandleReloadConfigRequest."""

    def __init__(self, models: Models, threads: Threads, workers: Workers | None = None) -> None:
        self._models = models
        self._threads = threads
        self._workers = workers

    async def GetModelStatus(self, request: Any, context: Any) -> Any:
        """State of one version, or of all that were ever tried."""
        return await self._threads.run(self._status, request)

    async def HandleReloadConfigRequest(self, request: Any, context: Any) -> Any:
        """Serve the models of the request, and no others; all of it or nothing."""
        return await self._threads.run(self._reload, request)

    def _status(self, request: Any) -> Any:
        records = self._models.records(*requested(request.model_spec))
        if self._workers is not None:
            known = self._workers.known(request.model_spec.name)
            records = {number: combined([one.get(number) for one in known]) for number in records}
        response = get_model_status_pb2.GetModelStatusResponse()
        states = get_model_status_pb2.ModelVersionStatus.State
        for number, record in reversed(records.items()):
            status = response.model_version_status.add(
                version=number, state=states.Value(record.state)
            )
            if record.error:
                status.status.error_code = _UNKNOWN
                status.status.error_message = record.error
        return response

    def _reload(self, request: Any) -> Any:
        """Load and replace.

        Raises:
            InvalidRequestError: the configuration contradicts itself.
            WrongStateError: a model cannot serve; what served goes on.
            DrainingError: the server stops while the models are loaded.
        """
        try:
            configs = model_configs(request.config)
        except ServingError as error:
            raise InvalidRequestError(f"config: {error}") from None
        try:
            (self._workers or self._models).apply(configs)
        except RequestError:
            raise
        except ServingError as error:
            if self._models.stopping:
                raise DrainingError("the server is stopping; nothing was changed") from None
            raise WrongStateError(f"config: {error}; nothing was changed") from None
        LOG.info("models by request: %s", ", ".join(config.name for config in configs))
        return model_management_pb2.ReloadConfigResponse()


def combined(records: Sequence[Record | None]) -> Record:
    """State of a version in several workers as one: available where it is so in all.

    Args:
        records: of each worker; None where it has not seen the version yet.
    """
    failed = next((record for record in records if record is not None and record.error), None)
    if failed is not None:
        return failed
    states = {"LOADING" if record is None else record.state for record in records}
    if states == {"AVAILABLE", "END"}:
        return Record("UNLOADING")
    return next(
        Record(state) for state in ("LOADING", "UNLOADING", "AVAILABLE", "END") if state in states
    )
