"""The working folder of a training: beside its checkpoint while it runs, then removed.

.<name>.training/
    lock            held by the process that trains
    run.json        configuration and data, so that only the same training continues it
    checkpoint/     the unfinished checkpoint; renamed to <name> at the end
    snapshot-*.npz  see `model.training.snapshots`
    best-*.h5       weights of the best epochs so far
    teacher.npz     scores of the teacher, see `model.baselines.teacher`

A killed process leaves the folder behind.  A process that is interrupted or runs out of disk leaves
it if it holds a snapshot; training continues from there.
"""

import fcntl
import json
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from multigate.configs.errors import DataError, ModelError, MultigateError
from multigate.configs.files import write_json
from multigate.model.backend.peers import PeerError
from multigate.model.training import snapshots

RUN = "run.json"
TEACHER = "teacher.npz"


class Workspace:
    """Context in which a checkpoint is trained.

    Args:
        out: the checkpoint's folder; must not exist.
        resume: whether to continue from a snapshot, if there is one.
        writes: whether this process writes.  Of several that train together one writes, and the
            others read its snapshots.

    Raises:
        DataError: `out` exists, another process is training it, or there is an interrupted
            training and `resume` is False.
    """

    def __init__(self, out: Path, resume: bool, writes: bool = True) -> None:
        self.out = out
        self.root = out.parent / f".{out.name}.training"
        self.checkpoint = self.root / "checkpoint"
        self.resume, self.writes = resume, writes
        self._lock: IO[str] | None = None
        self._made_parents: list[Path] = []

    def __enter__(self) -> "Workspace":
        if not self.writes:
            return self
        self._made_parents = [parent for parent in self.out.parents if not parent.exists()]
        self._refuse_existing()
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock = (self.root / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise DataError(
                f"{self.out}: another process is training this checkpoint; wait for it, or choose "
                "another output folder"
            ) from None
        self._refuse_existing()
        if snapshots.exist(self.root) and not self.resume:
            self._lock.close()
            raise DataError(
                f"{self.root}: holds an interrupted training of {self.out}; continue it with "
                "--resume, or remove the folder"
            )
        # Its files from before the interruption are written again from the snapshot.
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self.checkpoint.mkdir()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.writes:
            return
        # An error of ours would come again, except a lost worker.  After an interruption or a full
        # disk the training can continue.
        if error is None:
            self._refuse_existing()
            self.checkpoint.rename(self.out)
        comes_again = isinstance(error, MultigateError) and not isinstance(error, PeerError)
        keep = error is not None and not comes_again
        if not (keep and snapshots.exist(self.root)) and not isinstance(error, _OtherRunError):
            shutil.rmtree(self.root, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
        if error is not None:
            with suppress(OSError):  # up to the first one that is not empty
                for parent in self._made_parents:
                    parent.rmdir()

    def identify(self, run: dict[str, Any]) -> None:
        """Record what is trained; with snapshots, check that they are of the same training.

        Args:
            run: JSON values by name; an error message uses the name.

        Raises:
            ModelError: the snapshots are of another training.
        """
        path = self.root / RUN
        if snapshots.exist(self.root):
            try:
                before = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                before = {}
            for name, value in run.items():
                if before.get(name) != value:
                    raise _OtherRunError(
                        f"{self.root}: the interrupted training has another {name}; continue it "
                        f"with the same {name}, or remove the folder to start over"
                    )
        if self.writes:
            write_json(path, run)

    def best(self, epoch: int) -> Path:
        """Path of the weights of a best epoch."""
        return self.root / f"best-{epoch:06d}.h5"

    def remove_old_best(self) -> None:
        """Remove weights that no snapshot refers to: keep those of the two newest best epochs."""
        for old in sorted(self.root.glob("best-*.h5"))[:-2]:
            old.unlink()

    def _refuse_existing(self) -> None:
        if self.out.exists():
            raise DataError(
                f"{self.out}: already exists; choose another output folder or remove it"
            )


class _OtherRunError(ModelError):
    """The working folder belongs to another training and stays."""
