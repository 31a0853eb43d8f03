"""Flags, environment variables and their bounds."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from multigate.configs.errors import ServingError
from multigate.serving.core.options import ServerOptions, add_arguments, from_arguments


@pytest.fixture
def parse(monkeypatch):
    """Options from flags and an environment."""

    def parse(*flags, environment=None):
        for name, value in (environment or {}).items():
            monkeypatch.setenv(name, value)
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        return from_arguments(parser.parse_args(flags))

    return parse


def test_flags_have_tensorflow_servings_names(parse):
    options = parse(
        *("--model_name", "m", "--model_base_path", "models/m", "--port", "0"),
        *("--file_system_poll_wait_seconds", "0.5", "--no-enable_model_warmup"),
    )
    assert options == ServerOptions(
        model_name="m",
        model_base_path=Path("models/m"),
        port=0,
        file_system_poll_wait_seconds=0.5,
        enable_model_warmup=False,
    )
    assert options.host == "127.0.0.1"
    assert options.max_message_mebibytes == 4


SERVED = {"MODEL_NAME": "e", "MODEL_BASE_PATH": "models/e"}


def test_environment_variables_stand_in_for_flags(parse):
    options = parse("--model_name", "flag", environment=SERVED)
    assert (options.model_name, options.model_base_path) == ("flag", Path("models/e"))


@pytest.mark.parametrize("name", ServerOptions.model_fields)
def test_every_option_is_read_from_the_environment(parse, name):
    value = {
        "feature_clock": "cut_off",
        "log_format": "json",
        "feature_store": "none",
        "otlp_endpoint": "http://collector:4317",
        "enable_model_warmup": "false",
        "impression_log_rate": "0.5",
        "file_system_poll_wait_seconds": "0.5",
        "workers": "2",
        "tensorflow_intra_op_parallelism": "2",
    }.get(name, "1")
    options = parse(environment=SERVED | {f"MULTIGATE_{name.upper()}": value})
    assert str(getattr(options, name)).lower() in {value, f"{value}.0"}
    assert getattr(options, name) != ServerOptions.model_fields[name].default


def test_flags_win_over_the_environment(parse):
    environment = SERVED | {"MULTIGATE_PORT": "7", "MULTIGATE_WORKERS": "2", "MULTIGATE_HOST": ""}
    options = parse("--port", "8", environment=environment)
    assert (options.port, options.workers, options.host) == (8, 2, "127.0.0.1")
    environment = {"MULTIGATE_ENABLE_MODEL_WARMUP": "0"}
    assert parse("--enable_model_warmup", environment=environment).enable_model_warmup


def test_our_variable_wins_over_the_images(parse):
    environment = SERVED | {"MULTIGATE_MODEL_NAME": "ours"}
    assert parse(environment=environment).model_name == "ours"


@pytest.mark.parametrize("file", ["flag", "variable"])
def test_a_file_of_models_wins_over_the_images_variables(parse, file):
    if file == "flag":
        options = parse("--model_config_file", "models.txt", environment=SERVED)
    else:
        options = parse(environment=SERVED | {"MULTIGATE_MODEL_CONFIG_FILE": "models.txt"})
    assert options.model_config_file == Path("models.txt")
    assert (options.model_name, options.model_base_path) == ("", None)


def test_flags_that_name_a_model_win_over_a_file_in_the_environment(parse):
    environment = {"MULTIGATE_MODEL_CONFIG_FILE": "models.txt"}
    options = parse("--model_name", "m", "--model_base_path", "b", environment=environment)
    assert (options.model_name, options.model_config_file) == ("m", None)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"MULTIGATE_PORT": "tcp://10.0.0.1:80"}, "MULTIGATE_PORT: expected a whole number, rec"),
        ({"MULTIGATE_WORKERS": "0"}, "MULTIGATE_WORKERS: expected 1 to 256, received 0"),
        ({"MULTIGATE_LOG_FORMAT": "xml"}, "MULTIGATE_LOG_FORMAT: expected text or json, rec"),
    ],
)
def test_a_variable_that_cannot_work_is_named(parse, environment, says):
    with pytest.raises(ServingError, match="^" + re.escape(says)):
        parse(environment=SERVED | environment)


def test_help_needs_no_tensorflow_and_no_numpy():
    code = (
        "import sys\nfrom multigate.verbs.command import main\n"
        "try:\n main(['serve', '--help'])\nexcept SystemExit:\n pass\n"
        "print([one for one in ('tensorflow', 'numpy', 'grpc') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--max_batch_rows VALUE" in done.stdout
    assert done.stdout.endswith("[]\n"), done.stdout


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
        (["--port", "http"], "^--port: expected a whole number, received 'http'$"),
        (["--watch_rate", "x"], "^--watch_rate: expected a number, received 'x'$"),
        (["--log_format", "xml"], "^--log_format: expected text or json, received 'xml'$"),
        (["--feature_clock", "x"], "^--feature_clock: expected now or cut_off, received 'x'$"),
        (["--feature_store", "x"], "^--feature_store: expected version, none or an address"),
        (["--port", "8501", "--rest_api_port", "8501"], "--rest_api_port: expected another port"),
        (["--metrics_port", "8500"], "--metrics_port: expected another port than that of --port"),
    ],
)
def test_what_cannot_work_is_refused(parse, flags, says):
    alone = {"--model_name", "--model_base_path", "--model_config_file"} & {*flags}
    both = [] if alone else ["--model_name", "m"]
    both += ["--model_base_path", "b"] if both else []
    with pytest.raises(ServingError, match=says):
        parse(*both, *flags)


def test_from_python_what_is_wrong_is_named_as_well():
    with pytest.raises(ServingError, match=r"^--modle_name: there is no such option$"):
        ServerOptions(modle_name="m")
    with pytest.raises(ServingError, match=r"^--model_name: expected a text, received 5$"):
        ServerOptions(model_name=5, model_base_path="b")
