"""Our messages and TensorFlow Serving's as JSON, as protobuf itself writes them."""

import json
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from multigate.runtime.tensorflow_messages import get_model_metadata_pb2
from multigate.serving.core.status import InvalidRequestError
from multigate.serving.core.wire import numbers_of
from multigate.serving.protos import ranking_pb2
from multigate.serving.rest.documents import kind_of, read_object
from multigate.serving.rest.lists import put_lists, take_lists

_DEEPEST = 20
_SIGNATURES = "signature_def"
_KINDS = {str: "text", int: "integer", float: "number"}
"""JSON's values -> the field of a message that holds one; that of several has an s."""
_SHOWN = 24  # letters of a text


def read_message(body: bytes, kind: str) -> Any:
    """A request of the RankingService.

    Args:
        body: JSON; fields have their names of the .proto file, or these in camel case.
        kind: name of the message.

    Raises:
        InvalidRequestError: the body is not such a message.
    """
    document = read_object(body)
    message = getattr(ranking_pb2, kind)()
    try:
        return _filled(document, message)
    except Exception as error:  # ParseError, and whatever a value of a wrong type raises in it
        reason = _misspelled(document, message.DESCRIPTOR) or str(error)
        # A text may hold half a surrogate pair, which no message and no answer can carry.
        reason = " ".join(reason.encode(errors="replace").decode().split())
    # Raised here, it does not keep the first error, whose frames hold all that the body said.
    raise InvalidRequestError(f"body: expected a {kind} as JSON: {reason:.500}")


def _filled(document: dict[str, Any], message: Message) -> Message:
    lists = take_lists(document)
    json_format.ParseDict(document, message, max_recursion_depth=_DEEPEST)
    put_lists(message, lists)
    return message


def _misspelled(document: dict[str, Any], kind: Descriptor, path: str = "") -> str | None:
    """What a refused document has in the place of an object, such as "u7" for {"text": "u7"}.

    json_format takes the letters of a text for names of fields, and does not say where a number is.
    Of an object whose only key is no field, such as {"value": "u7"}, it is the value.
    """
    # protobuf's own maps fail for a key that holds half a surrogate pair.
    fields = {field.name: field for field in kind.fields}
    fields |= {field.camelcase_name: field for field in kind.fields}
    for key, one in document.items():
        inner = fields[key].message_type if key in fields else None
        if inner is None or one is None:
            continue
        parts = {f"{path}{key}": one}
        if inner.GetOptions().map_entry:
            inner = inner.fields_by_name["value"].message_type
            if inner is None or not isinstance(one, dict):
                continue  # json_format's own words are clear
            parts = {f"{path}{key}.{name}": value for name, value in one.items()}
        for place, part in parts.items():
            said = f"{place}: expected an object with {', '.join(f.name for f in inner.fields)}"
            if not isinstance(part, dict):
                return f"{said}{_example(part, inner)}, received {kind_of(part)}"
            known = {name for field in inner.fields for name in (field.name, field.camelcase_name)}
            if len(part) == 1 and not part.keys() & known:
                ((name, value),) = part.items()
                if example := _example(value, inner):
                    return f"{said}{example}, received one with {name!r}"
            if found := _misspelled(part, inner, f"{place}."):
                return found
    return None


def _example(value: Any, kind: Descriptor) -> str:
    """How a message holds a bare value, or the first one of a list; "" where it cannot."""
    names = [field.name for field in kind.fields]
    one = value[0] if isinstance(value, list) and value else value
    held: Any = one[:_SHOWN] if isinstance(one, str) else one
    name = _KINDS.get(type(one), "")
    if isinstance(value, list):
        held, name = {"values": [held]}, f"{name}s"
        if names == ["values"]:
            return f", such as {json.dumps(held)}" if type(one) in _KINDS else ""
    return f", such as {json.dumps({name: held})}" if name in names else ""


def rank_answer(response: Any) -> dict[str, Any]:
    """The JSON of a RankResponse; the message is empty afterwards of its scores.

    protobuf writes a float with the fewest digits that read back as the same float, and looks for
    them one by one; ours has the digits of the double that equals it, in a tenth of the time.
    """
    scores = np.array(response.score, np.float64).tolist()
    tasks = {
        name: {"values": numbers_of(values).astype(np.float64).tolist()}
        for name, values in sorted(response.task_scores.items())
    }
    response.ClearField("score")
    response.ClearField("task_scores")
    return to_json(response) | {"score": scores, "task_scores": tasks}


def recommend_answer(response: Any) -> dict[str, Any]:
    """The JSON of a RecommendResponse."""
    ranking = rank_answer(response.ranking)
    response.ClearField("ranking")
    return {"ranking": ranking} | to_json(response)


def metadata_answer(response: Any) -> dict[str, Any]:
    """The JSON of a GetModelMetadataResponse, whose signatures TensorFlow Serving unpacks."""
    signatures = get_model_metadata_pb2.SignatureDefMap()
    response.metadata[_SIGNATURES].Unpack(signatures)
    return {
        "model_spec": to_json(response.model_spec),
        "metadata": {_SIGNATURES: to_json(signatures)},
    }


def to_json(message: Message) -> dict[str, Any]:
    """A message's fields by their names in the .proto file, those with default values too."""
    found: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found
