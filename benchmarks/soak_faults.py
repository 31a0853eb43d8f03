"""What goes wrong around the server in `benchmarks/soak.py`: swaps, a hung Redis, a full disk.

Each is a context: it sets up, gives the server its flags, does harm in a thread until it is left,
and says in numbers what it did.
"""

import math
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow.parquet as pq
from benchmarks.servers import NAME, random_request, read_contract
from benchmarks.swaps import publish

from multigate.configs.files import ExamplesFolder
from multigate.serving.feature_store.redis_client import connect
from multigate.serving.feature_store.redis_loader import load_snapshot
from multigate.serving.protos import ranking_pb2
from multigate.serving.versions.folders import scan

GRACE = 3.0
"""Seconds after which a server asks a Redis that answers again: its time limit for an answer, and
the pause until it tries again, take half of this."""
_TIMEOUT_MS = 500
_HANGS, _ANSWERS = 3.0, 7.0
"""Seconds for which Redis does."""


class Fault:
    """Harm that goes on until the block ends."""

    flags: Sequence[str] = ()
    """Of the server."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to do harm."""
        self._thread.start()

    def end(self) -> None:
        """Do no more of it, and mend what was done."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def numbers(self) -> dict[str, int]:
        """What was done, by name."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def _run(self) -> None:
        raise NotImplementedError


class Swaps(Fault):
    """One version after the other, all of the same weights, so that answers stay the same.

    Args:
        source: base folder with the version to copy; it stays as it is.
        base: the folder that the server follows, made here.
        every: seconds.
    """

    def __init__(self, source: Path, base: Path, every: float) -> None:
        super().__init__()
        self._version = next(iter(scan(source).values()))
        self._base, self._every = base, every
        self.last = 1
        base.mkdir()
        publish(self._version, base, 1)
        self.flags = (
            *("--model_base_path", str(base)),
            *("--file_system_poll_wait_seconds", "0.5"),
        )

    def numbers(self) -> dict[str, int]:
        """How many versions came after the first."""
        return {"swaps": self.last - 1}

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            publish(self._version, self._base, self.last + 1)
            self.last += 1
            # Those before may still load in a worker that has just started.
            shutil.rmtree(self._base / str(self.last - 3), ignore_errors=True)


class HangingRedis(Fault):
    """A Redis with a snapshot, which hangs for 3 s of every 10.

    Calls may go without it while it hangs and for `GRACE` seconds after that, and at no other time.

    Args:
        base: base folder of the versions.
        examples: with a snapshot.
        folder: of Redis' socket, made here.
    """

    def __init__(self, base: Path, examples: Path, folder: Path) -> None:
        super().__init__()
        folder.mkdir()
        self._contract = read_contract(base)
        self._examples = ExamplesFolder(examples)
        socket = folder / "redis.sock"
        options = ("--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder))
        self._process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        self._address = f"unix://{socket}?db=0"
        self._hangs: list[list[float]] = []
        """Monotonic seconds of the beginning and the end of each."""
        # Times since an event would grow, and with them the scores.
        self.flags = (
            *("--feature_store", self._address, "--feature_clock", "cut_off"),
            *("--feature_store_timeout_ms", str(_TIMEOUT_MS)),
        )

    def __enter__(self) -> Self:
        client = connect(self._address)
        for _ in range(600):
            with suppress(Exception):
                client.ping()
                break
            time.sleep(0.05)
        client.close()
        load_snapshot(self._examples.root, self._address, NAME, keep_seconds=7 * 86_400)
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._process.kill()
        self._process.wait()

    def requests(self, count: int, candidates: int) -> list[bytes]:
        """Rank calls by ids alone, of users and items that the snapshot holds."""
        users, items = (self._ids(side) for side in ("user", "item"))
        found = []
        for place in range(count):
            full = random_request(self._contract, 1, place)
            request = ranking_pb2.RankRequest(model=full.model, context=full.context)
            user, shown = users[place % len(users)], random.Random(place).sample(items, candidates)
            whole = isinstance(user, int)
            setattr(request.user[self._contract["user"]], "integer" if whole else "text", user)
            ids = request.candidates.item_id
            (ids.integers if isinstance(shown[0], int) else ids.texts).values.extend(shown)
            found.append(request.SerializeToString())
        return found

    def numbers(self) -> dict[str, int]:
        """How often it hung."""
        return {"redis_hangs": len(self._hangs)}

    def gone(self, began: float, ended: float) -> bool:
        """Whether a call met it while it hung, or shortly after."""
        return any(
            begin <= ended and began <= end + GRACE for begin, end in list(map(tuple, self._hangs))
        )

    def answering(self) -> list[tuple[float, float]]:
        """The times between two hangs, without the grace."""
        ends = [end + GRACE for _, end in self._hangs]
        return list(zip(ends, [begin for begin, _ in self._hangs[1:]], strict=False))

    def _ids(self, side: str) -> list[Any]:
        rows = pq.read_table(self._examples.snapshot(f"{side}s"), columns=[self._contract[side]])
        return [one for one in rows[0].to_pylist() if one is not None]

    def _run(self) -> None:
        while not self._stop.wait(_ANSWERS):
            hang = [time.monotonic(), math.inf]
            self._hangs.append(hang)
            os.kill(self._process.pid, signal.SIGSTOP)
            self._stop.wait(_HANGS)
            os.kill(self._process.pid, signal.SIGCONT)
            hang[1] = time.monotonic()


class FullDisk(Fault):
    """An impression log on a disk of 8 MiB, which is full for half of the time.

    Needs the right to mount.

    Args:
        folder: where it is mounted, made here.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._times = folder, 0
        folder.mkdir()
        self.flags = (
            *("--impression_log", str(folder / "log")),
            *("--impression_log_rate", "0.2", "--impression_log_seconds", "2"),
        )

    def __enter__(self) -> Self:
        mount = ("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(self._folder))
        subprocess.run(mount, check=True)
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        subprocess.run(("umount", "-l", str(self._folder)), check=True)

    def numbers(self) -> dict[str, int]:
        """How often it was full."""
        return {"full_disks": self._times}

    def _run(self) -> None:
        filler = self._folder / "filler"
        while not self._stop.wait(10):
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
            self._times += 1
            self._stop.wait(10)
            filler.unlink(missing_ok=True)
            self._collect()
        self._collect()

    def _collect(self) -> None:
        """Take the files away, as a collector does."""
        for old in self._folder.glob("log/**/*.parquet"):
            old.unlink(missing_ok=True)
