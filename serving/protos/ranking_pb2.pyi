from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Return(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_SCORES: _ClassVar[Return]
    ORDER: _ClassVar[Return]

class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RETRIEVED: _ClassVar[Source]
    POPULAR: _ClassVar[Source]

class Against(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXAMPLES: _ClassVar[Against]
    CANDIDATES: _ClassVar[Against]
TASK_SCORES: Return
ORDER: Return
RETRIEVED: Source
POPULAR: Source
EXAMPLES: Against
CANDIDATES: Against

class ModelSpec(_message.Message):
    __slots__ = ("name", "version", "version_label")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_LABEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    version_label: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., version_label: _Optional[str] = ...) -> None: ...

class Texts(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class Integers(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ...) -> None: ...

class Numbers(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("text", "integer", "number", "texts", "integers", "numbers")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    INTEGERS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    text: str
    integer: int
    number: float
    texts: Texts
    integers: Integers
    numbers: Numbers
    def __init__(self, text: _Optional[str] = ..., integer: _Optional[int] = ..., number: _Optional[float] = ..., texts: _Optional[_Union[Texts, _Mapping]] = ..., integers: _Optional[_Union[Integers, _Mapping]] = ..., numbers: _Optional[_Union[Numbers, _Mapping]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("texts", "integers", "numbers", "lengths", "present")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    INTEGERS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    texts: Texts
    integers: Integers
    numbers: Numbers
    lengths: _containers.RepeatedScalarFieldContainer[int]
    present: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, texts: _Optional[_Union[Texts, _Mapping]] = ..., integers: _Optional[_Union[Integers, _Mapping]] = ..., numbers: _Optional[_Union[Numbers, _Mapping]] = ..., lengths: _Optional[_Iterable[int]] = ..., present: _Optional[_Iterable[bool]] = ...) -> None: ...

class ItemIds(_message.Message):
    __slots__ = ("texts", "integers")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    INTEGERS_FIELD_NUMBER: _ClassVar[int]
    texts: Texts
    integers: Integers
    def __init__(self, texts: _Optional[_Union[Texts, _Mapping]] = ..., integers: _Optional[_Union[Integers, _Mapping]] = ...) -> None: ...

class Candidates(_message.Message):
    __slots__ = ("item_id", "columns")
    class ColumnsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Column
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    item_id: ItemIds
    columns: _containers.MessageMap[str, Column]
    def __init__(self, item_id: _Optional[_Union[ItemIds, _Mapping]] = ..., columns: _Optional[_Mapping[str, Column]] = ...) -> None: ...

class Floor(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: float
    max: float
    def __init__(self, min: _Optional[float] = ..., max: _Optional[float] = ...) -> None: ...

class RankRequest(_message.Message):
    __slots__ = ("model", "user", "context", "candidates", "task_weights", "floors", "limit", "returns", "request_id")
    class UserEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    class ContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    class TaskWeightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class FloorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Floor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Floor, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    TASK_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    FLOORS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    user: _containers.MessageMap[str, Value]
    context: _containers.MessageMap[str, Value]
    candidates: Candidates
    task_weights: _containers.ScalarMap[str, float]
    floors: _containers.MessageMap[str, Floor]
    limit: int
    returns: Return
    request_id: str
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., user: _Optional[_Mapping[str, Value]] = ..., context: _Optional[_Mapping[str, Value]] = ..., candidates: _Optional[_Union[Candidates, _Mapping]] = ..., task_weights: _Optional[_Mapping[str, float]] = ..., floors: _Optional[_Mapping[str, Floor]] = ..., limit: _Optional[int] = ..., returns: _Optional[_Union[Return, str]] = ..., request_id: _Optional[str] = ...) -> None: ...

class RankResponse(_message.Message):
    __slots__ = ("item_index", "item_id", "score", "task_scores", "model_name", "model_version", "schema", "request_id", "warnings", "unscored_index")
    class TaskScoresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Numbers
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Numbers, _Mapping]] = ...) -> None: ...
    ITEM_INDEX_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TASK_SCORES_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    UNSCORED_INDEX_FIELD_NUMBER: _ClassVar[int]
    item_index: _containers.RepeatedScalarFieldContainer[int]
    item_id: ItemIds
    score: _containers.RepeatedScalarFieldContainer[float]
    task_scores: _containers.MessageMap[str, Numbers]
    model_name: str
    model_version: int
    schema: str
    request_id: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    unscored_index: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, item_index: _Optional[_Iterable[int]] = ..., item_id: _Optional[_Union[ItemIds, _Mapping]] = ..., score: _Optional[_Iterable[float]] = ..., task_scores: _Optional[_Mapping[str, Numbers]] = ..., model_name: _Optional[str] = ..., model_version: _Optional[int] = ..., schema: _Optional[str] = ..., request_id: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ..., unscored_index: _Optional[_Iterable[int]] = ...) -> None: ...

class RecommendRequest(_message.Message):
    __slots__ = ("model", "user", "context", "exclude", "candidates", "task_weights", "floors", "limit", "returns", "request_id")
    class UserEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    class ContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    class TaskWeightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class FloorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Floor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Floor, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    TASK_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    FLOORS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    user: _containers.MessageMap[str, Value]
    context: _containers.MessageMap[str, Value]
    exclude: ItemIds
    candidates: int
    task_weights: _containers.ScalarMap[str, float]
    floors: _containers.MessageMap[str, Floor]
    limit: int
    returns: Return
    request_id: str
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., user: _Optional[_Mapping[str, Value]] = ..., context: _Optional[_Mapping[str, Value]] = ..., exclude: _Optional[_Union[ItemIds, _Mapping]] = ..., candidates: _Optional[int] = ..., task_weights: _Optional[_Mapping[str, float]] = ..., floors: _Optional[_Mapping[str, Floor]] = ..., limit: _Optional[int] = ..., returns: _Optional[_Union[Return, str]] = ..., request_id: _Optional[str] = ...) -> None: ...

class RecommendResponse(_message.Message):
    __slots__ = ("ranking", "candidates_name", "candidates_version", "source")
    RANKING_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_NAME_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ranking: RankResponse
    candidates_name: str
    candidates_version: int
    source: Source
    def __init__(self, ranking: _Optional[_Union[RankResponse, _Mapping]] = ..., candidates_name: _Optional[str] = ..., candidates_version: _Optional[int] = ..., source: _Optional[_Union[Source, str]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("ranking", "candidate", "against", "pairs", "seed")
    RANKING_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    AGAINST_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ranking: RankRequest
    candidate: int
    against: Against
    pairs: int
    seed: int
    def __init__(self, ranking: _Optional[_Union[RankRequest, _Mapping]] = ..., candidate: _Optional[int] = ..., against: _Optional[_Union[Against, str]] = ..., pairs: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("model_name", "model_version", "schema", "request_id", "explanation")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    model_version: int
    schema: str
    request_id: str
    explanation: str
    def __init__(self, model_name: _Optional[str] = ..., model_version: _Optional[int] = ..., schema: _Optional[str] = ..., request_id: _Optional[str] = ..., explanation: _Optional[str] = ...) -> None: ...

class GetContractRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ...) -> None: ...

class Feature(_message.Message):
    __slots__ = ("name", "side", "kind", "dtype", "missing", "default", "max_length")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    side: str
    kind: str
    dtype: str
    missing: str
    default: Value
    max_length: int
    def __init__(self, name: _Optional[str] = ..., side: _Optional[str] = ..., kind: _Optional[str] = ..., dtype: _Optional[str] = ..., missing: _Optional[str] = ..., default: _Optional[_Union[Value, _Mapping]] = ..., max_length: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("name", "group", "type", "score_weight")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SCORE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    name: str
    group: str
    type: str
    score_weight: float
    def __init__(self, name: _Optional[str] = ..., group: _Optional[str] = ..., type: _Optional[str] = ..., score_weight: _Optional[float] = ...) -> None: ...

class GetContractResponse(_message.Message):
    __slots__ = ("model_name", "model_version", "schema", "user", "item", "features", "tasks", "combine", "max_candidates")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    COMBINE_FIELD_NUMBER: _ClassVar[int]
    MAX_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    model_version: int
    schema: str
    user: str
    item: str
    features: _containers.RepeatedCompositeFieldContainer[Feature]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    combine: str
    max_candidates: int
    def __init__(self, model_name: _Optional[str] = ..., model_version: _Optional[int] = ..., schema: _Optional[str] = ..., user: _Optional[str] = ..., item: _Optional[str] = ..., features: _Optional[_Iterable[_Union[Feature, _Mapping]]] = ..., tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., combine: _Optional[str] = ..., max_candidates: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListedVersion(_message.Message):
    __slots__ = ("version", "state", "error")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    version: int
    state: str
    error: str
    def __init__(self, version: _Optional[int] = ..., state: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class ListedTrial(_message.Message):
    __slots__ = ("version", "canary", "shadow")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    version: int
    canary: float
    shadow: float
    def __init__(self, version: _Optional[int] = ..., canary: _Optional[float] = ..., shadow: _Optional[float] = ...) -> None: ...

class ListedModel(_message.Message):
    __slots__ = ("name", "base_path", "ranker", "serving", "versions", "labels", "trial")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    BASE_PATH_FIELD_NUMBER: _ClassVar[int]
    RANKER_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    base_path: str
    ranker: str
    serving: int
    versions: _containers.RepeatedCompositeFieldContainer[ListedVersion]
    labels: _containers.ScalarMap[str, int]
    trial: ListedTrial
    def __init__(self, name: _Optional[str] = ..., base_path: _Optional[str] = ..., ranker: _Optional[str] = ..., serving: _Optional[int] = ..., versions: _Optional[_Iterable[_Union[ListedVersion, _Mapping]]] = ..., labels: _Optional[_Mapping[str, int]] = ..., trial: _Optional[_Union[ListedTrial, _Mapping]] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ListedModel]
    def __init__(self, models: _Optional[_Iterable[_Union[ListedModel, _Mapping]]] = ...) -> None: ...
