"""Time of one run of `rank` outside TensorFlow, and memory over loads; the C interface alone.

    python benchmarks/run_parts.py --model_base_path models/deskdrop [--loads 5]

Times are microseconds before TensorFlow's function, in it, and after it: medians and tenth
percentiles.  Memory is the process's, in MiB: resident, its own, its files', and at the peak, after
each load with its warm-up, 40 runs from two threads and the end of the version before.  Prints one
JSON line.
"""

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.runtime import inputs_of

from multigate.runtime.library import library
from multigate.runtime.memory import return_freed
from multigate.runtime.session import Session
from multigate.serving.core.layout import RANK
from multigate.serving.versions.folders import scan
from multigate.serving.versions.saved_model import SavedModel
from multigate.serving.versions.warmup import warm_up

RUNS = 100


def parts(base: Path, candidates: int) -> dict[str, list[int]]:
    """Median and tenth percentile of each part of a run."""
    runs = [[run[key] for key in sorted(run)] for run in inputs_of(base, candidates, 1)[:8]]
    session = Session(next(iter(scan(base).values())))
    call, c, moments = session.runner(session.definitions[RANK]), library(), []
    inner = c.TF_SessionRun

    def timed(*arguments: Any) -> None:
        moments.append(time.perf_counter())
        inner(*arguments)
        moments.append(time.perf_counter())

    c.TF_SessionRun = timed
    try:
        for turn in range(RUNS + len(runs)):
            moments.append(time.perf_counter())
            call(*runs[turn % len(runs)])
            moments.append(time.perf_counter())
    finally:
        c.TF_SessionRun = inner
        session.close()
    moments = moments[4 * len(runs) :]
    found = {}
    for place, name in enumerate(("before", "inside", "after")):
        starts, ends = moments[place::4], moments[place + 1 :: 4]
        took = sorted(1e6 * (end - start) for start, end in zip(starts, ends, strict=True))
        found[name] = [round(statistics.median(took)), round(took[len(took) // 10])]
    return found


def memory(base: Path, loads: int) -> list[list[int]]:
    """MiB after each load."""
    version, folder = next(iter(scan(base).items()))
    runs, old, found = inputs_of(base, 100, 1)[:4], None, []
    for _ in range(loads):
        saved_model = SavedModel.load(version, folder)
        warm_up(saved_model, folder)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(saved_model.signatures[RANK], runs * 10))
        return_freed()
        if old is not None:
            old.retire()
            return_freed()
        old = saved_model
        status = Path("/proc/self/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines())
        kinds = ("VmRSS", "RssAnon", "RssFile", "VmHWM")
        found.append([int(lines[kind].split()[0]) >> 10 for kind in kinds])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    parser.add_argument("--candidates", type=int, nargs="+", default=[100, 800])
    parser.add_argument("--loads", type=int, default=5)
    options = parser.parse_args()
    base = options.model_base_path
    found: dict[str, Any] = {"resident_own_files_peak": memory(base, options.loads)}
    found["microseconds"] = {count: parts(base, count) for count in options.candidates}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
