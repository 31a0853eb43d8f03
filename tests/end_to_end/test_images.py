"""The two images, built and run: a server in the one, a night in the other.

No Docker engine is needed: buildah builds them in a chroot, and debootstrap makes the base of
Debian, whose Python is the one that the Dockerfile names.  That takes minutes; the shorter form
borrows the system and the packages of this machine, and installs nothing: it tests what the images
hold of ours, their user, and their verbs.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.ports import free_port

from multigate.configs.errors import ServingError
from multigate.configs.written import as_yaml
from multigate.serving.client.rank_client import RankClient

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
TRUSTED = Path("/etc/ssl/certs/ca-certificates.crt")


class Images:
    """Images in a store of their own.

    Args:
        folder: of the store.
    """

    def __init__(self, folder):
        self.borrowed = {}
        """Folders of this machine that a container reads, with their places in it."""
        self._folder = folder
        self._buildah = (
            *("buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run")),
            *("--storage-driver", "vfs"),
        )

    def buildah(self, *arguments):
        """What a command of buildah says."""
        command = [*self._buildah, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout.strip()

    def make_base(self):
        """The image that the Dockerfile begins with."""
        system = self._folder / "system"
        debootstrap = ("debootstrap", "--variant=minbase", "--include=python3,python3-pip")
        done = subprocess.run(
            [*debootstrap, "bookworm", system], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:]
        (system / "usr/bin/python").symlink_to("python3")
        for marker in system.glob("usr/lib/python3.*/EXTERNALLY-MANAGED"):
            marker.unlink()  # the image's Python is its user's alone
        (system / TRUSTED.relative_to("/").parent).mkdir(parents=True, exist_ok=True)
        shutil.copy(TRUSTED, system / TRUSTED.relative_to("/"))
        # How this machine reaches packages.
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self.commit_base(system, pip)

    def commit_base(self, system, environment):
        """Make the image that the Dockerfile begins with of a folder, which goes."""
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, system, "/")
        shutil.rmtree(system)
        for name, value in environment.items():
            self.buildah("config", "--env", f"{name}={value}", container)
        (name,) = re.findall(r"^FROM (\S+) AS base$", DOCKERFILE, re.MULTILINE)
        self.buildah("commit", "--quiet", "--rm", container, f"docker.io/library/{name}")

    def instructions(self):
        """The Dockerfile that is built."""
        # buildah 1.28 does not know this option of HEALTHCHECK.
        return DOCKERFILE.replace("--start-interval=2s ", "")

    def build(self, target):
        """Build a target of the Dockerfile."""
        file = self._folder / "Dockerfile"
        file.write_text(self.instructions())
        options = ("--isolation", "chroot", "--pull-never", "--network", "host", *self._mounts({}))
        self.buildah("bud", *options, "--target", target, "--tag", target, "--file", file, ".")

    def _mounts(self, volumes):
        borrowed = {host: f"{inside}:ro" for host, inside in self.borrowed.items()}
        return [f"--volume={host}:{inside}" for host, inside in {**borrowed, **volumes}.items()]

    @contextmanager
    def container(self, image, volumes, environment):
        """The command that runs an image's entry point; options come behind it."""
        made = self.buildah("from", "--pull-never", image)
        try:
            config = json.loads(self.buildah("inspect", made))["OCIv1"]["config"]
            assert config["User"] == "multigate"
            mounts = self._mounts(volumes)
            variables = [f"--env={name}={value}" for name, value in environment.items()]
            yield [
                *(*self._buildah, "run", "--isolation", "chroot", "--network", "host"),
                *(*mounts, *variables, made, "--", *config["Entrypoint"]),
            ]
        finally:
            self.buildah("rm", made)


class BorrowingImages(Images):
    """Images on this machine's system and packages: the Dockerfile's lines but those of pip."""

    def __init__(self, folder):
        super().__init__(folder)
        self.borrowed = {"/usr": "/usr", sysconfig.get_path("purelib"): "/packages"}
        if not Path(sys.base_prefix).is_relative_to("/usr"):
            self.borrowed[sys.base_prefix] = sys.base_prefix

    def make_base(self):
        """A system of links into what is borrowed."""
        system = self._folder / "system"
        for name in ("etc", "home", "opt/bin", "tmp", "usr", "var"):
            (system / name).mkdir(parents=True)
        (system / "tmp").chmod(0o1777)
        for name in ("bin", "lib", "lib64", "sbin"):
            if Path("/", name).is_symlink():
                (system / name).symlink_to(Path("/", name).readlink())
        for name in ("ld.so.cache", "login.defs", "nsswitch.conf"):
            shutil.copy(Path("/etc", name), system / "etc" / name)
        (system / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
        (system / "etc/group").write_text("root:x:0:\n")
        (system / "opt/bin/python").symlink_to(Path(sys.executable).resolve())
        environment = {"PATH": "/opt/bin:/usr/sbin:/usr/bin", "PYTHONPATH": "/packages"}
        self.commit_base(system, environment)

    def instructions(self):
        """The Dockerfile, without what it installs."""
        return re.sub(r"^RUN pip .*\n", "", super().instructions(), flags=re.MULTILINE)


def made(kind, folder, lacking, programs):
    """The base image of a kind, in a store of its own."""
    for program in programs:
        if shutil.which(program) is None:
            lacking(f"{program} is not installed: Debian has a package of that name")
    if os.geteuid() != 0:
        lacking("only root makes a Debian system")
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        lacking("needs the right to mount")
    images = kind(folder)
    images.make_base()
    return images


@pytest.fixture(scope="module")
def images(tmp_path_factory, lacking):
    folder = tmp_path_factory.mktemp("images")
    yield made(Images, folder, lacking, ("buildah", "debootstrap"))
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def borrowing_images(tmp_path_factory, lacking):
    folder = tmp_path_factory.mktemp("borrowing")
    yield made(BorrowingImages, folder, lacking, ("buildah",))
    shutil.rmtree(folder, ignore_errors=True)


def readable(source, target):
    """A copy that the image's user can read."""
    shutil.copytree(source, target)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def rank_in_the_serving_image(images, small_run, tmp_path):
    images.build("serving")
    base = readable(small_run.root / "run/models/demo", tmp_path / "models")
    port = free_port()
    environment = {"MODEL_NAME": "demo", "MULTIGATE_PORT": port}
    with (
        images.container("serving", {base: "/models/model:ro"}, environment) as command,
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, stderr=log, start_new_session=True) as process,
        RankClient(f"127.0.0.1:{port}", timeout=30) as client,
    ):
        try:
            for _ in range(600):
                with suppress(ServingError):
                    if client.health() == "SERVING":
                        break
                assert process.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.2)
            probe = [*command[: command.index("--") + 1], "python", "-m"]
            probe += ["multigate.serving.client.probe", "--target", f"127.0.0.1:{port}"]
            assert subprocess.run(probe, check=False).returncode == 0
            found = client.rank(
                "demo",
                user={"user_id": "u0003"},
                context={"hour": 7},
                item_ids=["i0001", "i0002", "i0003"],
            )
            assert sorted(one["item_id"] for one in found) == ["i0001", "i0002", "i0003"]
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def run_a_night_in_the_training_image(images, small_run, tmp_path):
    images.build("training")
    log = readable(small_run.root / "logs", tmp_path / "log")
    (tmp_path / "night.yaml").write_text(as_yaml(small_run.config))
    (tmp_path / "night.yaml").chmod(0o644)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o777)
    volumes = {
        log: "/log:ro",
        tmp_path / "runs": "/runs",
        tmp_path / "night.yaml": "/night.yaml:ro",
    }
    with images.container("training", volumes, {}) as command:
        done = subprocess.run(
            [
                *command,
                "run",
                *("--config", "/night.yaml", "--data", "/log"),
                *("--out", "/runs", "--date", "2026-01-30"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert list((tmp_path / "runs/models/demo").iterdir())


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_the_serving_image_ranks(images, small_run, tmp_path):
    rank_in_the_serving_image(images, small_run, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_night_runs_in_the_training_image(images, small_run, tmp_path):
    run_a_night_in_the_training_image(images, small_run, tmp_path)


@pytest.mark.slow
def test_the_serving_image_holds_what_ranking_needs(borrowing_images, small_run, tmp_path):
    rank_in_the_serving_image(borrowing_images, small_run, tmp_path)


@pytest.mark.slow
def test_the_training_image_holds_what_a_night_needs(borrowing_images, small_run, tmp_path):
    run_a_night_in_the_training_image(borrowing_images, small_run, tmp_path)
