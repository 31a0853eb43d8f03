"""TensorFlow Serving's ModelService: the state of each version."""

from typing import Any

from tensorflow_serving.apis import get_model_status_pb2, model_service_pb2_grpc

from serving.manager import Manager
from serving.prediction import requested
from serving.status import InvalidRequestError, NotServedError, WrongStateError

_UNKNOWN = 2  # google.rpc.Code: the version failed; the message says why


class ModelStatusService(model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def GetModelStatus(self, request: Any, context: Any) -> Any:
        """State of one version, or of all that were ever tried."""
        name, version, label = requested(request.model_spec)
        self._manager.check_name(name)
        if label:
            raise InvalidRequestError(f"version label {label!r}: model {name!r} has no labels")
        records = self._manager.records()
        if version is not None:
            if version not in records:
                raise NotServedError(f"model {name!r}: version {version} is not known")
            records = {version: records[version]}
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

    def HandleReloadConfigRequest(self, request: Any, context: Any) -> Any:
        """Refused: the model comes from flags, which a call cannot change."""
        raise WrongStateError(
            "HandleReloadConfigRequest: this server's model comes from --model_name and "
            "--model_base_path; publish a version there, or restart the server with others"
        )
