"""The build: the repository's client and messages, assembled as the package `multigate_client`.

A build backend (PEP 517) that writes the package and leaves the rest to setuptools.  In a source
distribution, which has no repository around it, the package is there already.
"""

import shutil
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1] if len(HERE.parents) > 1 else HERE
PACKAGE = HERE / "multigate_client"

FILES = {
    "serving/client/__init__.py": "__init__.py",
    "serving/client/packing.py": "packing.py",
    "serving/client/probe.py": "probe.py",
    "serving/client/rank_client.py": "rank_client.py",
    "serving/core/credentials.py": "credentials.py",
    "configs/errors.py": "errors.py",
    "serving/protos/health.proto": "protos/health.proto",
    "serving/protos/health_pb2.py": "protos/health_pb2.py",
    "serving/protos/health_pb2.pyi": "protos/health_pb2.pyi",
    "serving/protos/ranking.proto": "protos/ranking.proto",
    "serving/protos/ranking_pb2.py": "protos/ranking_pb2.py",
    "serving/protos/ranking_pb2.pyi": "protos/ranking_pb2.pyi",
    "serving/protos/ranking_pb2_grpc.py": "protos/ranking_pb2_grpc.py",
}
"""Files of the repository, and their places in the package."""

NAMES = {
    "multigate.serving.client": "multigate_client",
    "multigate.serving.core.credentials": "multigate_client.credentials",
    "multigate.serving.protos": "multigate_client.protos",
    "multigate.configs.errors": "multigate_client.errors",
    # Messages of another version may be in the process's default pool, under the same names.
    "_descriptor_pool.Default()": "_descriptor_pool.DescriptorPool()",
}
"""What the files call each other, and what the package does."""


def assemble() -> None:
    """Write the package from the repository's files."""
    if not (REPOSITORY / "serving" / "client").is_dir():
        if PACKAGE.is_dir():
            return
        raise SystemExit(
            f"{HERE}: expected clients/python of the repository, or a source distribution"
        )
    shutil.rmtree(PACKAGE, ignore_errors=True)
    (PACKAGE / "protos").mkdir(parents=True)
    for source, target in FILES.items():
        text = (REPOSITORY / source).read_text(encoding="utf-8")
        if source.endswith((".py", ".pyi")):
            for name, own in NAMES.items():
                text = text.replace(name, own)
        (PACKAGE / target).write_text(text, encoding="utf-8")
    (PACKAGE / "protos" / "__init__.py").write_text('"""The messages of ranking.proto."""\n')
    (PACKAGE / "py.typed").touch()


def build_wheel(*arguments: Any, **settings: Any) -> str:
    """Assemble, then build."""
    assemble()
    return build_meta.build_wheel(*arguments, **settings)


def build_sdist(*arguments: Any, **settings: Any) -> str:
    """Assemble, then build."""
    assemble()
    return build_meta.build_sdist(*arguments, **settings)


def build_editable(*arguments: Any, **settings: Any) -> str:
    """Assemble, then build; after a change of the repository's files, install again."""
    assemble()
    return build_meta.build_editable(*arguments, **settings)
