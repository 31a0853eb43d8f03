"""TensorFlow Serving's ModelService: states of versions, and reloads of the set of models."""

from collections.abc import Sequence
from typing import Any, Protocol

from multigate.configs.errors import ServingError
from multigate.serving.core.loop import Threads
from multigate.serving.core.status import (
    LOG,
    DrainingError,
    InvalidRequestError,
    RequestError,
    WrongStateError,
)
from multigate.serving.protos.tensorflow_messages import (
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
)
from multigate.serving.rpc.prediction import read_tf_model_spec
from multigate.serving.versions.manager import VersionRecord
from multigate.serving.versions.model_config import ModelConfig, model_configs
from multigate.serving.versions.models import Models

_UNKNOWN = 2  # google.rpc.Code: the version failed; the message says why


class Workers(Protocol):
    """All worker processes of a server."""

    def apply(self, configs: Sequence[ModelConfig]) -> None:
        """Replace the models in every worker, or in none."""

    def known_records(self, name: str) -> Sequence[dict[int, VersionRecord]]:
        """For each worker, the state of a model's versions."""


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus and HandleReloadConfigRequest."""

    def __init__(self, models: Models, threads: Threads, workers: Workers | None = None) -> None:
        self._models = models
        self._threads = threads
        self._workers = workers

    async def GetModelStatus(self, request: Any, context: Any) -> Any:
        """State of one version, or of all versions that were ever loaded or tried."""
        return await self._threads.run(self._status, request)

    async def HandleReloadConfigRequest(self, request: Any, context: Any) -> Any:
        """Replace the models by those of the request; a failure changes nothing."""
        return await self._threads.run(self._reload, request)

    def _status(self, request: Any) -> Any:
        records = self._models.records(*read_tf_model_spec(request.model_spec))
        if self._workers is not None:
            name = request.model_spec.name
            known = self._workers.known_records(name) or [self._models.known_records(name)]
            records = {
                number: combine_states([one.get(number) for one in known]) for number in records
            }
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
        """Load the models of a request, and replace the present ones.

        Raises:
            InvalidRequestError: the configuration is invalid.
            WrongStateError: a model cannot be loaded; nothing changed.
            DrainingError: the server stopped during the load.
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
        LOG.info(
            "reload request: the models are now %s", ", ".join(config.name for config in configs)
        )
        return model_management_pb2.ReloadConfigResponse()


def combine_states(records: Sequence[VersionRecord | None]) -> VersionRecord:
    """One state for a version in several workers: AVAILABLE only where it is so in every worker.

    Args:
        records: one per worker; None where the worker has not seen the version yet.
    """
    failed = next((record for record in records if record is not None and record.error), None)
    if failed is not None:
        return failed
    states = {"LOADING" if record is None else record.state for record in records}
    if states == {"AVAILABLE", "END"}:
        return VersionRecord("UNLOADING")
    return next(
        VersionRecord(state)
        for state in ("LOADING", "UNLOADING", "AVAILABLE", "END")
        if state in states
    )
