"""What a verb needs before it works: next to nothing for help and for mistakes."""

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import multigate
from multigate.jobs.simulate import simulate
from multigate.verbs import VERBS

ROOT = Path(__file__).parents[2]
MODELS = ("tensorflow", "keras", "tf_keras", "jax")
HEAVY = (*MODELS, "apache_beam", "sklearn")
# The server's messages are files of TensorFlow's package, which is not executed for them.
HEAVY_FOR_SERVE = (*HEAVY[1:], "tensorflow.python")

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))  # importing one raises ImportError
from multigate.verbs.command import main
sys.exit(main(sys.argv[1:]))
"""


def call(
    *arguments: object, without: tuple[str, ...] = HEAVY, attempts: int = 4
) -> tuple[int, str, str, float]:
    """Run a verb where some packages cannot be imported; status, output, errors, CPU seconds.

    A virtual machine that pauses may count the pause as CPU time.  What has written nothing and
    took long is therefore asked again, a few times.
    """
    command = [sys.executable, "-c", WITHOUT, ",".join(without), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, cwd=ROOT)
    out, err = process.stdout.read(), process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close(), process.stderr.close()
    cpu = used.ru_utime + used.ru_stime
    wrote_nothing = process.returncode == 2 or "--help" in arguments
    if cpu > 1.8 and wrote_nothing and attempts > 1:
        return call(*arguments, without=without, attempts=attempts - 1)
    return process.returncode, out, err, cpu


@pytest.mark.parametrize("verb", VERBS)
def test_help_imports_no_package(verb):
    light = (*HEAVY, "polars", "pyarrow", "numpy", "grpc")
    status, out, err, cpu = call(verb, "--help", without=light)
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: multigate {verb} ")
    assert f"example:\n  multigate {verb} " in out
    assert cpu < 2.5  # TensorFlow alone takes seven


def test_help_lists_all_verbs_and_imports_none():
    status, out, err, _ = call(
        "--help", without=(*HEAVY, "pydantic", "yaml", "multigate.verbs.run")
    )
    assert (status, err) == (0, "")
    for verb, line in VERBS.items():
        assert f"\n    {verb}" in out
        assert line.split(":")[0][:40] in " ".join(out.split())


def test_the_version_is_that_of_the_project():
    status, out, err, _ = call("--version", without=(*HEAVY, "pydantic"))
    assert (status, out, err) == (0, f"multigate {multigate.__version__}\n", "")
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["version"] == multigate.__version__
    assert version("multigate") == multigate.__version__


def options(verb: str, config: Path, folder: Path) -> list[str]:
    """A command line whose configuration is `config`; its folders are in `folder`."""
    given = {
        "demo": ["demo", "--out", "out"],
        "examples": ["examples", "--data", "log", "--out", "out"],
        "audit": ["audit", "--data", "log", "--examples", "examples"],
        "train": ["train", "--examples", "examples", "--out", "out"],
        "tune": ["tune", "--examples", "examples", "--out", "out"],
        "evaluate": ["evaluate", "--checkpoint", "checkpoint", "--examples", "examples"],
        "compare": ["compare", "--candidate", "checkpoint", "--examples", "examples"],
        "run": ["run", "--data", "log", "--out", "out"],
        "candidates train": ["candidates", "train", "--examples", "examples", "--out", "out"],
        "candidates compare": [
            *("candidates", "compare", "--candidate", "checkpoint", "--examples", "examples")
        ],
    }[verb]
    names = ("out", "log", "examples", "checkpoint")
    paths = [str(folder / one) if one in names else one for one in given[1:]]
    return [given[0], *paths, "--config", str(config)]


CONFIGURED = (
    *("demo", "examples", "audit", "train", "tune", "evaluate", "compare", "run"),
    *("candidates train", "candidates compare"),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A log, examples of it, and the beginning of a checkpoint."""
    folder = tmp_path_factory.mktemp("startup")
    simulate(folder / "log", seed=1, users=50, items=30, exposures=3_000)
    status, _, err, _ = call(
        *("examples", "--config", "demo", "--data", folder / "log", "--out", folder / "examples"),
        without=MODELS,
    )
    assert (status, err) == (0, "")
    (folder / "checkpoint").mkdir()
    shutil.copy(folder / "examples/contract.json", folder / "checkpoint")
    (folder / "checkpoint/config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("verb", CONFIGURED)
def test_a_wrong_configuration_is_told_at_once(verb, folders, tmp_path):
    config = tmp_path / "wrong.yaml"
    settings = yaml.safe_load((ROOT / "configs/presets/demo.yaml").read_text())
    config.write_text(yaml.safe_dump(settings | {"modle": {}}))
    status, out, err, cpu = call(*options(verb, config, folders))
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {config}: modle: unknown key; did you mean 'model'? ")
    assert len(err.splitlines()) == 1
    assert cpu < 3.0


@pytest.mark.parametrize(
    ("verb", "changed", "message"),
    [
        ("tune", {}, "tune.space: expected at least one setting to search"),
        ("tune", {"tune": {"space": {"train.rate": {"choices": [1]}}}}, "no setting 'train.rate'"),
        ("candidates train", {"candidates": {"positives": "x"}}, "candidates.positives: expected"),
    ],
)
def test_a_setting_that_fits_nothing_is_told_at_once(verb, changed, message, folders, tmp_path):
    config = tmp_path / "wrong.yaml"
    settings = yaml.safe_load((ROOT / "configs/presets/demo.yaml").read_text())
    config.write_text(yaml.safe_dump(settings | changed))
    status, out, err, cpu = call(*options(verb, config, folders))
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert len(err.splitlines()) == 1
    assert cpu < 4.0  # these look at packages that are lighter than TensorFlow


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_a_rule_for_an_unknown_task_is_told_at_once(verb, folders, tmp_path):
    settings = yaml.safe_load((ROOT / "configs/presets/demo.yaml").read_text())
    settings["contract"]["tasks"]["other"] = settings["contract"]["tasks"]["click"]
    settings["evaluation"] = {"rules": {"tasks": {"other": {"must_win": True}}}}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(settings))
    status, _, err, cpu = call(*options(verb, tmp_path / "other.yaml", folders))
    assert status == 2
    assert "evaluation.rules.tasks: expected one of" in err
    assert cpu < 3.0


@pytest.mark.parametrize(
    ("absent", "verb", "message"),
    [
        ("log", "demo", "no such folder; expected the folder that holds the log"),
        ("log", "examples", "no such folder; expected the folder that holds the log"),
        ("log", "audit", "no such folder; expected the folder that holds the log"),
        ("examples", "audit", "expected one that `multigate examples` wrote"),
        ("examples", "train", "expected one that `multigate examples` wrote"),
        ("examples", "tune", "expected one that `multigate examples` wrote"),
        ("examples", "evaluate", "expected one that `multigate examples` wrote"),
        ("examples", "compare", "expected one that `multigate examples` wrote"),
        ("examples", "candidates train", "expected one that `multigate examples` wrote"),
        ("checkpoint", "evaluate", "expected a checkpoint (with config.json) or an exported"),
        ("checkpoint", "compare", "expected a checkpoint (with config.json) or an exported"),
    ],
)
def test_an_absent_folder_is_told_at_once(absent, verb, message, folders, tmp_path):
    for name in {"log", "examples", "checkpoint"} - {absent}:
        (tmp_path / name).symlink_to(folders / name)
    arguments = options(verb, Path("demo"), tmp_path)
    if verb == "demo":
        arguments += ["--data", str(tmp_path / "log")]
    status, out, err, cpu = call(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {tmp_path / absent}: ")
    assert message in err
    assert len(err.splitlines()) == 1
    assert cpu < 3.0


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_an_absent_baseline_is_told_at_once(verb, folders, tmp_path):
    config = tmp_path / "beats.yaml"
    settings = yaml.safe_load((ROOT / "configs/presets/demo.yaml").read_text())
    config.write_text(yaml.safe_dump(settings | {"evaluation": {"rules": {"beats": "lightgbm"}}}))
    more = ["--baseline", "lightgbm"] if verb == "evaluate" else []
    command = options(verb, config, folders)
    status, out, err, cpu = call(*command, *more, without=(*HEAVY, "lightgbm"))
    assert (status, out) == (2, "")
    assert err == (
        "error: baseline lightgbm: expected the package lightgbm, but it is not installed; run "
        "`pip install multigate[baseline]`\n"
    )
    assert cpu < 3.0


@pytest.mark.parametrize("verb", ["evaluate", "compare", "run"])
def test_a_baseline_that_cannot_be_loaded_is_told_at_once(verb, folders, tmp_path, monkeypatch):
    """Installed, but without a library of the system: a night would train for hours first."""
    package = tmp_path / "packages" / "lightgbm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        'raise OSError("libgomp.so.1: cannot open shared object file:\\n No such file")\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)
    config = tmp_path / "beats.yaml"
    settings = yaml.safe_load((ROOT / "configs/presets/demo.yaml").read_text())
    config.write_text(yaml.safe_dump(settings | {"evaluation": {"rules": {"beats": "lightgbm"}}}))
    more = ["--baseline", "lightgbm"] if verb == "evaluate" else []
    command = options(verb, config, folders)
    status, out, err, cpu = call(*command, *more)
    assert (status, out) == (2, "")
    assert err == (
        "error: baseline lightgbm: the package is installed but cannot be loaded: libgomp.so.1: "
        "cannot open shared object file: No such file; install the library that it names (Debian "
        "and Ubuntu: `apt-get install libgomp1`), or install the package anew with `pip install "
        "--force-reinstall --no-deps lightgbm`\n"
    )
    assert cpu < 4.0


@pytest.mark.parametrize("action", ["export", "candidates evaluate", "candidates export"])
def test_an_absent_checkpoint_is_told_at_once(action, folders, tmp_path):
    out = ["--out", tmp_path / "out"] if action.endswith("export") else []
    status, _, err, cpu = call(
        *action.split(),
        *("--checkpoint", tmp_path / "absent", "--examples", folders / "examples", *out),
    )
    assert status == 2
    writer = "candidates train" if action.startswith("candidates") else "train"
    assert err == (
        f"error: {tmp_path}/absent/config.json: no such file; expected a folder that "
        f"`multigate {writer}` wrote\n"
    )
    assert cpu < 3.0


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("model_config_file", None, "cannot be read: No such file or directory"),
        ("model_config_file", "modle_config_list {}", 'no field named "modle_config_list"'),
        ("ssl_config_file", 'server_key: "key.pem"', "server_key: expected the PEM text itself"),
        ("auth_token_file", "\n", "expected printable ASCII tokens, one a line"),
    ],
)
def test_a_wrong_file_of_the_server_is_told_at_once(flag, text, message, workers, tmp_path):
    path = tmp_path / "file.txt"
    if text is not None:
        path.write_text(text)
    models = ["--model_name", "m", "--model_base_path", tmp_path]
    status, out, err, cpu = call(
        *("serve", f"--{flag}", path, "--workers", workers),
        *(() if flag == "model_config_file" else models),
        without=HEAVY_FOR_SERVE,
    )
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert f"{path}: " in err
    assert message in err
    assert len(err.splitlines()) == 1
    assert cpu < 3.0


def test_an_absent_base_path_is_told_at_once(tmp_path):
    absent, config = tmp_path / "absent", tmp_path / "models.txt"
    config.write_text(
        f'model_config_list {{ config {{ name: "m" base_path: "{absent}" '
        'model_platform: "tensorflow" } }'
    )
    for arguments in (
        ("--model_name", "m", "--model_base_path", absent),
        ("--model_config_file", config),
    ):
        status, out, err, cpu = call("serve", *arguments, without=HEAVY_FOR_SERVE)
        assert (status, out) == (2, "")
        assert err == f"error: {absent}: expected a folder of versions, but it does not exist\n"
        assert cpu < 3.0


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("serve", "expected numbered version folders such as "),
        ("score", "expected an exported version (with saved_model.pb), found none"),
        ("evaluate", "expected a checkpoint (with config.json) or an exported version"),
        ("compare", "expected a checkpoint (with config.json) or an exported version"),
        ("candidates compare", "expected an exported version (with saved_model.pb), found none"),
        ("candidates report", "expected an exported version (with saved_model.pb), found none"),
        ("explain", "expected an exported version (with saved_model.pb), a folder of versions"),
        ("export", "no such file; expected a folder that `multigate train` wrote"),
        ("publish", "no version 1; versions: none"),
    ],
)
def test_a_wrong_model_folder_is_told_at_once(verb, message, folders, tmp_path):
    """A folder that is there and holds no model: no library is loaded to find out."""
    wrong, examples = tmp_path / "wrong", ("--examples", folders / "examples")
    (wrong / "notes").mkdir(parents=True)
    given = {
        "serve": ("--model_name", "m", "--model_base_path", wrong),
        "score": ("--version", wrong, *examples, "--out", tmp_path / "out.csv"),
        "evaluate": ("--version", wrong, *examples),
        "compare": ("--candidate", wrong, *examples),
        "candidates compare": ("--candidate", wrong, *examples),
        "candidates report": ("--candidates", wrong, "--ranker", wrong, *examples),
        "explain": ("--model", wrong, *examples, "--row", 0),
        "export": ("--checkpoint", wrong, *examples, "--out", tmp_path / "out"),
        "publish": ("--base", wrong, "--version", 1),
    }[verb]
    without = (*HEAVY_FOR_SERVE, "multigate.runtime.library")
    status, out, err, cpu = call(*verb.split(), *given, without=without)
    assert (status, out) == (2, "")
    told = wrong / "config.json" if verb == "export" else wrong
    assert err.startswith(f"error: {told}: {message}")
    assert len(err.splitlines()) == 1
    assert cpu < 2.0


def test_a_version_in_place_of_its_base_folder_is_told_at_once(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1/saved_model.pb").touch()
    status, _, err, _ = call(
        *("serve", "--model_name", "m", "--model_base_path", tmp_path / "1"),
        without=HEAVY_FOR_SERVE,
    )
    assert status == 2
    assert "received a version; give the folder that it is in" in err


@pytest.mark.slow
def test_verbs_that_compute_no_model_work_without_tensorflow(folders, tmp_path):
    status, out, err, _ = call(
        *("audit", "--config", "demo", "--data", folders / "log"),
        *("--examples", folders / "examples", "--sample", 20),
        without=MODELS,
    )
    assert (status, err) == (0, "")
    assert "none uses the future" in out
    (tmp_path / "runs").mkdir()
    (tmp_path / "base").mkdir()
    assert call("runs", "--out", tmp_path / "runs", "--json")[:2] == (0, '{"runs": []}\n')
    assert call("publish", "--base", tmp_path / "base")[:3:2] == (0, "")
    status, _, err, _ = call(
        "rank", "--target", "localhost:1", "--model", "m", "--user", "{}", "--items", "1",
        "--timeout", 1, without=(*HEAVY, "numpy", "polars"),
    )  # fmt: skip
    assert status == 2
    assert err.startswith("error: localhost:1: ")


def test_a_finished_night_is_told_without_tensorflow(tmp_path):
    """The log is not there: the pipeline says so, and TensorFlow was not needed."""
    status, _, err, _ = call(
        *("run", "--config", "demo", "--data", tmp_path / "log", "--out", tmp_path / "runs"),
        *("--date", "2026-01-30"),
    )
    assert status == 2
    assert err.startswith(f"error: {tmp_path}/log: no such folder")


HELD = """
import pathlib, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if library in pathlib.Path("/proc/self/maps").read_text():
            pathlib.Path(begun).touch()
            time.sleep(600)
library, begun = sys.argv.pop(1), sys.argv.pop(1)
sys.meta_path.insert(0, Slow())
from multigate.__main__ import main
sys.exit(main())
"""
"""The command; the import of a library waits at its first module after the library is loaded."""


@pytest.mark.parametrize(
    ("verb", "library", "number"),
    [
        ("train", "libtensorflow", signal.SIGTERM),
        ("train", "libtensorflow", signal.SIGINT),
        ("serve", "libtensorflow", signal.SIGTERM),
        ("serve", "libtensorflow", signal.SIGINT),
        ("examples", "libarrow", signal.SIGINT),
        ("init", "polars", signal.SIGTERM),
        ("init", "polars", signal.SIGINT),
    ],
)
def test_a_signal_while_a_library_is_imported_is_one_line(
    verb, library, number, folders, tmp_path, tmp_path_factory
):
    """A verb that waits for its first library has written nothing, and serves nothing yet."""
    base = tmp_path / "models"
    out = ("--out", tmp_path / "out")
    command = {
        "train": ("train", "--config", "demo", "--examples", folders / "examples", *out),
        "serve": ("serve", "--model_name", "m", "--model_base_path", base, "--port", 0),
        "examples": ("examples", "--config", "demo", "--data", folders / "log", *out),
        "init": ("init", "--data", folders / "log", *out),
    }[verb]
    if verb == "serve":
        (base / "1").mkdir(parents=True)
        (base / "1/saved_model.pb").touch()
    before = sorted(tmp_path.rglob("*"))
    begun = tmp_path_factory.mktemp("held") / "begun"
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, library, begun, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    (line,) = err.splitlines()
    assert line.startswith("error: interrupted; no")
    assert sorted(tmp_path.rglob("*")) == before


ENTRY = """
import pathlib, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "multigate.verbs.command":
            pathlib.Path(sys.argv[1]).touch()
            time.sleep(600)
sys.meta_path.insert(0, Slow())
from multigate.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_command_itself_is_imported_is_one_line(number, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", ENTRY, tmp_path / "begun"], stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, "error: interrupted; nothing half-written is left\n")


def test_the_command_that_is_installed_is_the_entry():
    with (ROOT / "pyproject.toml").open("rb") as file:
        scripts = tomllib.load(file)["project"]["scripts"]
    assert scripts == {"multigate": "multigate.__main__:main"}


JOB = """
import sys
from multigate.verbs.command import _interrupted_by_signals
job = {"__name__": "multigate.jobs.some_job"}
exec('''
def run():
    try:
        import slow
        print("goes on")
    finally:
        print("cleans up")
''', job)
try:
    with _interrupted_by_signals([]):
        job["run"]()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_during_an_import_of_a_job(times, tmp_path):
    """The first waits until the import ends; the second does not."""
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\n"
        "folder = pathlib.Path(__file__).parent\n"
        "while not (folder / 'go on').exists():\n"
        "    with (folder / 'beats').open('a') as beats:\n"
        "        beats.write('.')\n"
        "    time.sleep(0.01)\n"
        "print('imported')\n"
    )
    beats = tmp_path / "beats"

    def wait_for_beats(process, count):
        """Let the import do so many more rounds: after two, a signal before them has come."""
        last = (beats.stat().st_size if beats.exists() else 0) + count
        while process.poll() is None and (not beats.exists() or beats.stat().st_size < last):
            time.sleep(0.01)

    process = subprocess.Popen(
        [sys.executable, "-c", JOB],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    wait_for_beats(process, 1)
    for _ in range(times):
        process.send_signal(signal.SIGTERM)
        wait_for_beats(process, 2)
    (tmp_path / "go on").touch()
    out, err = process.communicate()
    if times == 1:
        assert (process.returncode, err) == (0, "")
        assert out == "imported\ncleans up\ninterrupted\n"
    else:
        assert (process.returncode, out) == (130, "")
        assert err.startswith("error: interrupted twice, and ended at once; a hidden unfinished ")
        assert err.count("\n") == 1
