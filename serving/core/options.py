"""Options of the server: flags, environment variables, or arguments from Python.

Flags have TensorFlow Serving's names where it has one.  Every option is also read from the
environment as MULTIGATE_NAME; flags and arguments win over the environment.  Imports no TensorFlow,
so that `--help` stays fast.
"""

import argparse
import os
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    InstanceOf,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from multigate.configs.errors import DataError, ServingError
from multigate.configs.storage import Address, place
from multigate.serving.core.logs import Format

_PREFIX = "MULTIGATE_"
_ONE_MODEL = ("multigate_model_name", "multigate_model_base_path")
"""The options that TensorFlow Serving's variables name as well; pydantic calls them so."""
_LARGE = 2**31 - 1

_Count = Annotated[int, Ge(1), Le(_LARGE)]
_CountOrNone = Annotated[int, Ge(0), Le(_LARGE)]
_Port = Annotated[int, Ge(0), Le(65535)]
_Time = Annotated[float, Ge(0), Le(_LARGE)]
_Share = Annotated[float, Ge(0), Le(1)]


def _read_place(value: Any) -> Any:
    """A path, an address, or None.

    Raises:
        ValueError: neither, or an address of no known kind.
    """
    if value is None:
        return None
    if not isinstance(value, str | Path | Address):
        raise ValueError(f"expected a path or an address, received {value!r}")
    try:
        return place(value)
    except DataError as error:
        raise ValueError(str(error)) from None


_PlaceOrNone = Annotated[Path | InstanceOf[Address] | None, NoDecode, BeforeValidator(_read_place)]


class _Environment(EnvSettingsSource):
    """Environment variables, less those that name models in another way than the arguments do.

    The image sets MODEL_NAME and MODEL_BASE_PATH; a file that names all models wins over them.
    """

    def __call__(self) -> dict[str, Any]:
        """Options by name."""
        found, given = super().__call__(), self.current_state
        if given.keys() & _ONE_MODEL:
            found.pop("model_config_file", None)
        if "model_config_file" in {**found, **given}:
            return {name: value for name, value in found.items() if name not in _ONE_MODEL}
        return found


class ServerOptions(BaseSettings):
    """Options of one server process; every field is also a flag of that name."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    model_name: str = Field(
        "",
        description="name of the model in requests",
        validation_alias=AliasChoices("multigate_model_name", "model_name"),
    )
    model_base_path: _PlaceOrNone = Field(
        None,
        description="folder that holds the model's numbered versions, or its address, such as "
        "s3://bucket/models/NAME",
        validation_alias=AliasChoices("multigate_model_base_path", "model_base_path"),
    )
    model_config_file: Path | None = Field(
        None,
        description="file that names several models, with version policies and labels: a "
        "ModelServerConfig as text",
    )
    model_config_file_poll_wait_seconds: _Time = Field(
        0.0,
        description="time between looks at --model_config_file, whose changes are applied as those "
        "of reload requests; 0: none",
    )
    store_poll_wait_seconds: Annotated[float, Ge(0.01), Le(_LARGE)] = Field(
        30.0, description="time between looks at a base path in an object store"
    )
    candidates_base_path: _PlaceOrNone = Field(
        None,
        description="folder that holds the versions of the candidate model, which finds the items "
        "of Recommend",
    )
    recommend_candidates: _Count = Field(
        500, description="candidates that Recommend ranks when the call gives no number"
    )
    retrieval_timeout_ms: Annotated[float, Ge(0.1), Le(_LARGE)] = Field(
        100.0,
        description="time for the candidate model's answer; after it, popular items are ranked",
    )
    canary_timeout_ms: Annotated[float, Ge(0.1), Le(_LARGE)] = Field(
        1000.0,
        description="time for the answer of a version on trial, at most half of the caller's; "
        "after it, the version in production answers",
    )
    host: str = Field(
        "127.0.0.1",
        description="address to listen on; the default accepts calls from this machine only",
    )
    port: _Port = Field(8500, description="port of all gRPC services; 0: a free one")
    rest_api_port: Annotated[int, Ge(-1), Le(65535)] = Field(
        -1, description="port of JSON over HTTP; 0: a free one; -1: no HTTP"
    )
    rest_api_timeout_in_ms: _Count = Field(
        30_000, description="longest time of a call over HTTP, and that of one without a deadline"
    )
    metrics_port: Annotated[int, Ge(-1), Le(65535)] = Field(
        -1, description="port of the Prometheus metrics; 0: a free one; -1: no metrics"
    )
    workers: Annotated[int, Ge(1), Le(256)] = Field(
        1, description="processes that share the port; clients need several connections"
    )
    max_connection_age_seconds: _Time = Field(
        0.0,
        description="age at which the server closes a connection, so that clients connect anew; "
        "0: never",
    )
    ssl_config_file: Path | None = Field(
        None, description="TLS: file with an SSLConfig as text, with key and certificate as PEM"
    )
    auth_token_file: Path | None = Field(
        None, description="file of bearer tokens, one a line; every call must show one of them"
    )
    admin_token_file: Path | None = Field(
        None,
        description="file of bearer tokens, one a line, for reload requests; without it, reload "
        "requests are refused",
    )
    feature_store: str = Field(
        "version",
        description="source of the features that a Rank call leaves out: version, the snapshot "
        "inside each version; redis://host:port/db; or none",
    )
    feature_store_timeout_ms: Annotated[float, Ge(0.1), Le(_LARGE)] = Field(
        20.0, description="time for an answer from Redis; after it, the missing rules apply"
    )
    feature_clock: Literal["now", "cut_off"] = Field(
        "now",
        description="end of stored times since an event: now; or cut_off, to serve a log of the "
        "past as if it were then",
    )
    impression_log: Path | None = Field(
        None, description="folder for the impression log: what was ranked, as rows in Parquet"
    )
    impression_log_rate: _Share = Field(
        1.0, description="share of the calls in the impression log, chosen by request id"
    )
    impression_log_rows: _Count = Field(
        100_000, description="rows of one file of the impression log"
    )
    impression_log_seconds: Annotated[float, Ge(0.01), Le(_LARGE)] = Field(
        60.0, description="age at which a file of the impression log is finished"
    )
    watch_rate: _Share = Field(
        0.05, description="drift: share of the Rank calls that are compared with the test split"
    )
    watch_seconds: _Time = Field(
        300.0, description="drift: shortest window of calls that are compared together"
    )
    watch_psi: _Time = Field(
        0.25, description="drift: stability index of a task's scores above which the log warns"
    )
    watch_share: _Share = Field(
        0.1,
        description="drift: change of a share of missing or unseen values above which the log "
        "warns",
    )
    otlp_endpoint: str = Field(
        "",
        description="traces: address of an OpenTelemetry collector (OTLP over gRPC), such as "
        "http://localhost:4317; https for TLS; empty: no traces",
    )
    otlp_sampling_rate: _Share = Field(
        0.01, description="traces: share of the calls whose callers send no trace context"
    )
    log_format: Format = Field(
        "text", description="format of the log on the standard error stream: text or json"
    )
    log_calls: _Share = Field(
        0.0, description="share of the calls that get a line in the log, with their request id"
    )
    file_system_poll_wait_seconds: Annotated[float, Ge(0.01), Le(_LARGE)] = Field(
        1.0, description="time between looks at the base path for new versions"
    )
    max_num_load_retries: _CountOrNone = Field(
        5, description="retries of a version that failed to load, while its files do not change"
    )
    load_retry_interval_micros: _CountOrNone = Field(
        10_000_000, description="time between these retries"
    )
    enable_model_warmup: bool = Field(
        True, description="replay a version's recorded requests before it serves (default: yes)"
    )
    max_message_mebibytes: Annotated[int, Ge(1), Le(1024)] = Field(
        4,
        description="largest request message, checked before it is parsed; parsing one of 4 MiB "
        "holds up other calls for some 30 ms at most",
    )
    max_candidates: _Count = Field(10_000, description="most candidates of one Rank call")
    grpc_max_threads: _Count = Field(
        64,
        description="threads for work that takes long or waits, such as Redis or tf.Examples",
    )
    max_concurrent_calls: _Count = Field(
        256, description="most calls in flight; more are refused with RESOURCE_EXHAUSTED"
    )
    max_batch_rows: _Count = Field(
        800,
        description="rows of one joined run of the model; on CPUs more than about 800 gain nothing",
    )
    max_queued_calls: _CountOrNone = Field(
        64, description="most calls that wait for a run; more are refused with UNAVAILABLE"
    )
    num_batch_threads: _CountOrNone = Field(
        0,
        description="runs at once, per version and signature; 0: half the CPUs, shared by the "
        "workers",
    )
    tensorflow_intra_op_parallelism: _CountOrNone = Field(
        1, description="threads inside one operation of a run; 0: TensorFlow chooses"
    )
    tensorflow_inter_op_parallelism: Annotated[int, Ge(-1), Le(_LARGE)] = Field(
        -1,
        description="threads for operations that run at once; 0: TensorFlow chooses; -1: the run's "
        "own thread, which costs least; otherwise TensorFlow ends a run's loops once no call waits",
    )
    drain_delay_seconds: _Time = Field(
        0.0,
        description="drain: time from reporting NOT_SERVING to closing, for load balancers to "
        "notice",
    )
    drain_grace_seconds: _Time = Field(
        30.0, description="drain: time for calls in flight to finish"
    )

    def __init__(self, **values: Any) -> None:
        """Take the values, and what they leave out from the environment.

        Raises:
            ServingError: names the flag or variable, the expectation and what came.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ServingError(
                "\n".join(_describe(one, values) for one in error.errors(include_url=False))
            ) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments first, then the environment; no files."""
        return init_settings, _Environment(settings_cls)

    @model_validator(mode="after")
    def _check(self) -> "ServerOptions":
        """Refuse options that contradict each other.

        Raises:
            ServingError: names the flag, the expectation and what came.
        """
        if self.model_config_file is None:
            if not self.model_name:
                raise ServingError("--model_name: required; pass it or set MODEL_NAME")
            if self.model_base_path is None:
                raise ServingError("--model_base_path: required; pass it or set MODEL_BASE_PATH")
        elif self.model_name or self.model_base_path is not None:
            raise ServingError(
                "--model_config_file: names all models; leave --model_name and "
                "--model_base_path out"
            )
        elif self.candidates_base_path is not None:
            raise ServingError(
                "--candidates_base_path: with --model_config_file, a candidate model is a config "
                "of its own, with model_platform: 'candidates/RANKER'"
            )
        stores = ("version", "none", "redis://", "rediss://", "unix://")
        if not self.feature_store.startswith(stores):
            raise ServingError(
                "--feature_store: expected version, none or an address such as "
                f"redis://localhost:6379/0, received {self.feature_store!r}"
            )
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ServingError(
                "--otlp_endpoint: expected an address such as http://localhost:4317, received "
                f"{self.otlp_endpoint!r}"
            )
        taken: dict[int, str] = {}
        for name in ("port", "rest_api_port", "metrics_port"):
            port = getattr(self, name)
            if port > 0 and (other := taken.setdefault(port, name)) != name:
                raise ServingError(
                    f"--{name}: expected another port than that of --{other}, received {port}"
                )
        return self

    @property
    def batch_slots(self) -> int:
        """Runs at once, per version and signature, in one worker."""
        return self.num_batch_threads or max((os.cpu_count() or 1) // (2 * self.workers), 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one flag per option; the value of an absent flag is None."""
    for name, field in ServerOptions.model_fields.items():
        text = field.description or ""
        if name in {"model_name", "model_base_path"}:
            text += f" (or environment variable {name.upper()})"
        elif field.annotation is not bool and field.default is not None:
            text += f" (default: {field.default})"
        if field.annotation is bool:
            parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=text)
        else:
            parser.add_argument(f"--{name}", metavar="VALUE", help=text)


def from_arguments(arguments: argparse.Namespace) -> ServerOptions:
    """Options from parsed flags and, where a flag is absent, the environment.

    Raises:
        ServingError: an option is missing or cannot work.
    """
    flags = {name: getattr(arguments, name) for name in ServerOptions.model_fields}
    return ServerOptions(**{name: value for name, value in flags.items() if value is not None})


def _describe(error: Any, given: dict[str, Any]) -> str:
    """One line for one of pydantic's errors.

    Args:
        error: one item of `ValidationError.errors`.
        given: the arguments; an option that is not among them comes from the environment.
    """
    name = str(error["loc"][0]).removeprefix(_PREFIX.lower())
    where = f"--{name}" if name in given else _PREFIX + name.upper()
    field = ServerOptions.model_fields.get(name)
    if field is None:
        return f"{where}: there is no such option"
    if error["type"] == "value_error":
        return f"{where}: {error['ctx']['error']}"
    bounds = [one for one in field.metadata if isinstance(one, Ge | Le)]
    if error["type"] == "literal_error":
        expected = " or ".join(typing.get_args(field.annotation))
    elif error["type"] in {"greater_than_equal", "less_than_equal"}:
        least, most = (getattr(one, "ge", getattr(one, "le", None)) for one in bounds)
        expected = f"{least} to {most}"
    else:
        kinds = {int: "a whole number", float: "a number", bool: "true or false"}
        expected = kinds.get(field.annotation, "a text")  # type: ignore[arg-type]
    return f"{where}: expected {expected}, received {_plain(error['input'])}"


def _plain(value: Any) -> str:
    """A number as it was written; other values in quotes."""
    try:
        float(value)
    except (TypeError, ValueError):
        return repr(value)
    return str(value)
