"""Flags, environment variables and their bounds."""

import argparse
from pathlib import Path

import pytest

from multigate.configs.errors import ServingError
from multigate.serving.core.options import ServerOptions, add_arguments, from_arguments


def parse(*flags, environment=None):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return from_arguments(parser.parse_args(flags), environment or {})


def test_flags_have_tensorflow_servings_names():
    options = parse(
        *("--model_name", "m", "--model_base_path", "models/m", "--port", "0"),
        *("--file_system_poll_wait_seconds", "0.5", "--no-enable_model_warmup"),
    )
    assert options == ServerOptions(
        "m",
        Path("models/m"),
        port=0,
        file_system_poll_wait_seconds=0.5,
        enable_model_warmup=False,
    )
    assert options.host == "127.0.0.1"
    assert options.max_message_mebibytes == 64


def test_environment_variables_stand_in_for_flags():
    environment = {"MODEL_NAME": "e", "MODEL_BASE_PATH": "models/e"}
    options = parse("--model_name", "flag", environment=environment)
    assert (options.model_name, options.model_base_path) == ("flag", Path("models/e"))


def test_a_file_of_models_goes_before_the_variables():
    environment = {"MODEL_NAME": "e", "MODEL_BASE_PATH": "models/e"}
    options = parse("--model_config_file", "models.txt", environment=environment)
    assert options == ServerOptions(model_config_file=Path("models.txt"), port=8500)
    assert (options.model_name, options.model_base_path) == ("", None)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--model_base_path", "x"], "--model_name: required; pass it or set MODEL_NAME"),
        (["--model_name", "x"], "--model_base_path: required; .*MODEL_BASE_PATH"),
        (["--model_name", "", "--model_base_path", "x"], "--model_name: required"),
        (
            ["--model_name", "x", "--model_base_path", "b", "--model_config_file", "f"],
            "--model_config_file: names all models; leave --model_name",
        ),
        (
            ["--candidates_base_path", "c", "--model_config_file", "f"],
            "--candidates_base_path: with --model_config_file, .* 'candidates/RANKER'",
        ),
        (["--retrieval_timeout_ms", "0"], "--retrieval_timeout_ms: expected 0.1 to"),
        (["--port", "65536"], "--port: expected 0 to 65535, received 65536"),
        (["--max_batch_rows", "0"], "--max_batch_rows: expected 1 to"),
        (["--file_system_poll_wait_seconds", "nan"], "received nan"),
    ],
)
def test_what_cannot_work_is_refused(flags, says):
    alone = {"--model_name", "--model_base_path", "--model_config_file"} & {*flags}
    both = [] if alone else ["--model_name", "m"]
    both += ["--model_base_path", "b"] if both else []
    with pytest.raises(ServingError, match=says):
        parse(*both, *flags)
