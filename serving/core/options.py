"""What the server can be told, on the command line and from Python.

Flags have TensorFlow Serving's names where it has one.  Imports no TensorFlow, so that `--help`
stays fast.
"""

import argparse
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from multigate.configs.errors import ServingError
from multigate.serving.core.logs import FORMATS

_LARGE = 2**31 - 1


@dataclass(frozen=True)
class Flag:
    """What the command line says of an option, and the bounds of its number."""

    text: str
    least: float = 1
    most: float = _LARGE
    variable: str = ""
    """Environment variable that stands in for an absent flag."""


@dataclass(frozen=True)
class ServerOptions:
    """Options of one server process; every field is also a flag of that name."""

    model_name: Annotated[
        str, Flag("name under which clients ask for the model", variable="MODEL_NAME")
    ] = ""
    model_base_path: Annotated[
        Path | None, Flag("folder of the model's numbered versions", variable="MODEL_BASE_PATH")
    ] = None
    model_config_file: Annotated[
        Path | None,
        Flag("several models, with version policies and labels: a ModelServerConfig as text"),
    ] = None
    candidates_base_path: Annotated[
        Path | None,
        Flag("folder of the versions of the candidate model, whose items Recommend has ranked"),
    ] = None
    recommend_candidates: Annotated[
        int, Flag("candidates that Recommend ranks where the call does not say how many")
    ] = 500
    retrieval_timeout_ms: Annotated[
        float,
        Flag("time for a candidate model's answer; after it popular items stand in", 0.1),
    ] = 100.0
    host: Annotated[
        str, Flag("address to listen on; the default is reachable from this machine only")
    ] = "127.0.0.1"
    port: Annotated[int, Flag("port of all gRPC services; 0: a free one", 0, 65535)] = 8500
    metrics_port: Annotated[
        int, Flag("port of the Prometheus metrics; 0: a free one; -1: no metrics", -1, 65535)
    ] = -1
    workers: Annotated[
        int, Flag("processes that share the port; for clients with several connections", 1, 256)
    ] = 1
    max_connection_age_seconds: Annotated[
        float, Flag("age at which a connection ends, so that clients connect anew; 0: none", 0)
    ] = 0.0
    ssl_config_file: Annotated[
        Path | None, Flag("TLS: an SSLConfig as text, with key and certificate as PEM")
    ] = None
    auth_token_file: Annotated[
        Path | None, Flag("bearer tokens, one a line, of which every call must show one")
    ] = None
    feature_store: Annotated[
        str,
        Flag(
            "where features come from that a Rank call leaves out: version, the snapshot that each "
            "version carries; redis://host:port/db; or none"
        ),
    ] = "version"
    feature_store_timeout_ms: Annotated[
        float, Flag("time for an answer from Redis, after which missing rules stand in", 0.1)
    ] = 20.0
    feature_clock: Annotated[
        str,
        Flag(
            "up to when stored times since an event grow: now; or cut_off, for logs of the past "
            "that are served as if it were then"
        ),
    ] = "now"
    impression_log: Annotated[
        Path | None, Flag("folder that gets what was ranked, as impression rows in Parquet")
    ] = None
    impression_log_rate: Annotated[
        float, Flag("share of the calls that are logged, chosen by request id", 0, 1)
    ] = 1.0
    impression_log_rows: Annotated[int, Flag("rows of one file of the impression log")] = 100_000
    impression_log_seconds: Annotated[
        float, Flag("age at which a file of the impression log is finished", 0.01)
    ] = 60.0
    watch_rate: Annotated[
        float, Flag("share of the Rank calls that are compared with the test split", 0, 1)
    ] = 0.05
    watch_seconds: Annotated[
        float, Flag("least time of a window, whose calls are compared together", 0)
    ] = 300.0
    watch_psi: Annotated[
        float, Flag("stability index of a task's scores above which the log warns", 0)
    ] = 0.25
    watch_share: Annotated[
        float, Flag("difference of a share of missing or unseen values above which it warns", 0, 1)
    ] = 0.1
    log_format: Annotated[str, Flag("of the log on the standard error stream: text or json")] = (
        "text"
    )
    log_calls: Annotated[
        float, Flag("share of the calls that get a line in the log, with their request id", 0, 1)
    ] = 0.0
    file_system_poll_wait_seconds: Annotated[
        float, Flag("time between looks at the base path for new versions", 0.01)
    ] = 1.0
    max_num_load_retries: Annotated[
        int, Flag("tries again of a version that failed, while its files stay the same", 0)
    ] = 5
    load_retry_interval_micros: Annotated[int, Flag("time between these tries", 0)] = 10_000_000
    enable_model_warmup: Annotated[
        bool, Flag("replay a version's recorded requests before it serves")
    ] = True
    max_message_mebibytes: Annotated[int, Flag("largest request message", 1, 1024)] = 64
    max_candidates: Annotated[int, Flag("most candidates of one Rank call")] = 10_000
    grpc_max_threads: Annotated[
        int, Flag("threads for what takes a call long or may wait, such as Redis or tf.Examples")
    ] = 64
    max_concurrent_calls: Annotated[
        int, Flag("calls accepted at once; more are refused with RESOURCE_EXHAUSTED")
    ] = 256
    max_batch_rows: Annotated[
        int, Flag("rows of one joined run of the model; on CPUs joining stops paying near 800")
    ] = 800
    max_queued_calls: Annotated[
        int, Flag("calls that may wait for a run; more are refused with UNAVAILABLE", 0)
    ] = 64
    num_batch_threads: Annotated[
        int, Flag("runs at once, per version and signature; 0: half the CPUs, shared by workers", 0)
    ] = 0
    tensorflow_intra_op_parallelism: Annotated[
        int, Flag("threads of one operation, beside the runs at once; 0: TensorFlow chooses", 0)
    ] = 1
    tensorflow_inter_op_parallelism: Annotated[
        int,
        Flag("threads for operations that run at once; 0: TensorFlow chooses; -1: the call's", -1),
    ] = -1
    drain_delay_seconds: Annotated[
        float, Flag("time from reporting NOT_SERVING to closing, for load balancers to notice", 0)
    ] = 0.0
    drain_grace_seconds: Annotated[
        float, Flag("time that calls in flight have to finish when the server stops", 0)
    ] = 30.0

    @property
    def batch_slots(self) -> int:
        """Runs at once, per version and signature, in one worker."""
        return self.num_batch_threads or max((os.cpu_count() or 1) // (2 * self.workers), 1)

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

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
        if self.log_format not in FORMATS:
            raise ServingError(
                f"--log_format: expected {' or '.join(FORMATS)}, received {self.log_format!r}"
            )
        if self.feature_clock not in {"now", "cut_off"}:
            raise ServingError(
                f"--feature_clock: expected now or cut_off, received {self.feature_clock!r}"
            )
        for name, _, flag in _flags():
            value = getattr(self, name)
            numeric = isinstance(value, int | float) and not isinstance(value, bool)
            # The comparison is false for NaN, which is thereby refused.
            if numeric and not flag.least <= value <= flag.most:
                raise ServingError(
                    f"--{name}: expected {flag.least} to {flag.most}, received {value}"
                )


def _flags() -> list[tuple[str, type, Flag]]:
    """Name, type and flag of every option."""
    hints = typing.get_type_hints(ServerOptions, include_extras=True)
    found = []
    for name, hint in hints.items():
        kind, flag = typing.get_args(hint)
        # Of `Path | None`, Path: None is the absence of the flag.
        found.append((name, next(iter(typing.get_args(kind)), kind), flag))
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one flag per option; absent flags are None and take the option's default."""
    defaults = {option.name: option.default for option in fields(ServerOptions)}
    for name, kind, flag in _flags():
        text, default = flag.text, defaults[name]
        if flag.variable:
            text += f" (or environment variable {flag.variable})"
        elif default not in {None, ""} and isinstance(default, str | int | float):
            text += f" (default: {default})"
        if kind is bool:
            parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=text)
        else:
            parser.add_argument(f"--{name}", type=kind, metavar="VALUE", help=text)


def from_arguments(
    arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> ServerOptions:
    """Options from parsed flags and, for those that have one, environment variables.

    Raises:
        ServingError: a flag is missing or cannot work.
    """
    values: dict[str, Any] = {}
    for name, kind, flag in _flags():
        given = getattr(arguments, name)
        # Images set the variables; the file, which names models itself, goes before them.
        if given is None and arguments.model_config_file is None:
            text = environment.get(flag.variable) if flag.variable else None
            given = kind(text) if text else None
        if given is not None:
            values[name] = given
    return ServerOptions(**values)
