"""TensorFlow Serving's ModelService: states of versions, and reloads of the set of models."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client.core import Metric

from multigate.configs.errors import ServingError
from multigate.runtime.tensorflow_messages import (
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
)
from multigate.serving.core.loop import Threads
from multigate.serving.core.status import (
    LOG,
    DrainingError,
    InvalidRequestError,
    RequestError,
    WrongStateError,
)
from multigate.serving.protos import ranking_pb2
from multigate.serving.rpc.prediction import read_tf_model_spec
from multigate.serving.versions.manager import VersionRecord
from multigate.serving.versions.model_config import ModelConfig, model_configs
from multigate.serving.versions.models import Models

_UNKNOWN = 2  # google.rpc.Code: the version failed; the message says why


class Workers(Protocol):
    """All worker processes of a server."""

    def apply(self, configs: Sequence[ModelConfig], file: bytes | None = None) -> None:
        """Replace the models in every worker, or in none; `file` is what asks for them."""

    def known_records(self, name: str) -> Sequence[dict[int, VersionRecord]]:
        """For each worker, the state of a model's versions."""

    def collect(self) -> Iterable[Metric]:
        """The metrics of all workers."""


def list_models(models: Models, workers: Workers | None) -> Any:
    """All models as a ListModelsResponse."""
    response = ranking_pb2.ListModelsResponse()
    for name, manager in sorted(models.managers().items()):
        one = response.models.add(
            name=name, base_path=str(manager.base_path), ranker=manager.ranker
        )
        one.labels.update(manager.labels)
        serving, trial = manager.serving(), manager.trial()
        if serving is not None:
            one.serving = serving
        if trial is not None:
            settings = trial[0]
            one.trial.version = settings.version
            one.trial.canary, one.trial.shadow = settings.canary, settings.shadow
        records = _of_all_workers(name, manager.records(), models, workers)
        for number, record in sorted(records.items(), reverse=True):
            one.versions.add(version=number, state=record.state, error=record.error)
    return response


def _of_all_workers(
    name: str,
    records: Mapping[int, VersionRecord],
    models: Models,
    workers: Workers | None,
) -> Mapping[int, VersionRecord]:
    """The state of a model's versions over all workers.

    Args:
        name: of the model.
        records: the versions, with their states in this worker.
        models: of this worker.
        workers: None where there is this process alone.
    """
    if workers is None:
        return records
    known = workers.known_records(name) or [models.known_records(name)]
    return {number: combine_states([one.get(number) for one in known]) for number in records}


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
        name = request.model_spec.name
        records = dict(_of_all_workers(name, records, self._models, self._workers))
        response = get_model_status_pb2.GetModelStatusResponse()
        states = get_model_status_pb2.ModelVersionStatus.State
        for number, record in reversed(records.items()):
            status = response.model_version_status.add(
                version=number, state=states.Value(record.state)
            )
            status.status.SetInParent()  # OK; TensorFlow Serving always sends it
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
