"""The working folder of a training: beside its checkpoint while it runs, gone when that is whole.

.<name>.training/
    lock            held by the process that trains
    run.json        what is trained on what, so that nothing else continues it
    checkpoint/     the checkpoint as far as it is; renamed to <name> at the end
    snapshot-*.npz  see `model.training.snapshots`
    best-*.h5       weights of the best epochs so far

A process that is killed leaves the folder behind, and one that is interrupted or out of disk leaves
it where it holds a snapshot: training continues from there.
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


class Workspace:
    """Context in which a checkpoint is trained.

    Args:
        out: the checkpoint's folder; must not exist.
        resume: whether to continue from a snapshot where there is one.
        writes: whether this process writes: of several that train together one does, and the
            others read its snapshots.

    Raises:
        DataError: `out` exists, another process is training it, or there is an interrupted
            training that `resume` does not ask for.
    """

    def __init__(self, out: Path, resume: bool, writes: bool = True) -> None:
        self.out = out
        self.root = out.parent / f".{out.name}.training"
        self.checkpoint = self.root / "checkpoint"
        self.resume, self.writes = resume, writes
        self._lock: IO[str] | None = None
        self._made: list[Path] = []

    def __enter__(self) -> "Workspace":
        if not self.writes:
            return self
        self._made = [parent for parent in self.out.parents if not parent.exists()]
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
        # What was written before the interruption is written anew from the snapshot.
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
        # An error of ours would come again, but for a lost worker's; whoever interrupts or makes
        # room wants to continue.
        if error is None:
            self._refuse_existing()
            self.checkpoint.rename(self.out)
        again = isinstance(error, MultigateError) and not isinstance(error, PeerError)
        keep = error is not None and not again
        if not (keep and snapshots.exist(self.root)) and not isinstance(error, _OtherRunError):
            shutil.rmtree(self.root, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
        if error is not None:
            with suppress(OSError):  # up to the first that holds something else
                for parent in self._made:
                    parent.rmdir()

    def identify(self, run: dict[str, Any]) -> None:
        """Record what is trained, or check that the interrupted training was the same.

        Args:
            run: JSON values, by what an error message calls them.

        Raises:
            ModelError: the snapshots are of another run.
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
        """Where the weights of a best epoch go."""
        return self.root / f"best-{epoch:06d}.h5"

    def forget_best(self) -> None:
        """Remove the weights of all but the two newest best epochs; no snapshot refers to them."""
        for old in sorted(self.root.glob("best-*.h5"))[:-2]:
            old.unlink()

    def _refuse_existing(self) -> None:
        if self.out.exists():
            raise DataError(
                f"{self.out}: already exists; choose another output folder or remove it"
            )


class _OtherRunError(ModelError):
    """The working folder is another run's, and stays."""
