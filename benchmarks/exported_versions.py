"""What a call costs with each of several exported versions, such as those of two exporters.

    python benchmarks/exported_versions.py before=FOLDER now=FOLDER [--rounds R]
    python benchmarks/exported_versions.py --save FOLDER

It measures the CPU time of a call of `rank`.  The versions are loaded as the server loads them and
called in turns within one process, on the items of the first folder's largest warm-up request.
Beside it stand the operations that the runtime's trace counts.  --save writes the reference case of
`inference.py` with per-example gates as such a folder.

Prints a table and, last, one JSON line.
"""

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from inference import REFERENCE, K, make_case, make_table
from python_session import PythonSession
from tensorflow_serving.apis import prediction_log_pb2

from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.files import write_json
from multigate.model.export import warmup_requests
from multigate.model.export.export import EXTRA
from multigate.model.export.graph import RANK
from multigate.serving.versions.saved_model import SavedModel

CANDIDATES = (1, 100, 500)
_CALLS = 10
"""Calls between two readings of the clock."""


def save_reference(folder: Path) -> None:
    """Write the reference case as a version that `--folders` can compare."""
    gate = {"name": "topk", "num_selected": K, "static": False}
    shape, experts, units, tasks = (REFERENCE[n] for n in ("shape", "experts", "units", "tasks"))
    _, encoder, servable = make_case(shape, experts, units, tasks, gate)
    servable.save(folder)
    contract = encoder.contract
    schema = contract.schema_fingerprint()
    frozen = FrozenContract(contract=contract, schema_fingerprint=schema, data_fingerprint="")
    (folder / EXTRA).mkdir()
    write_json(folder / EXTRA / "contract.json", frozen.model_dump(mode="json"))
    signatures = tf.saved_model.load(str(folder)).signatures
    table = make_table(encoder, max(CANDIDATES))
    warmup_requests.write(folder / EXTRA, shape, contract, table, signatures, None, ())


def request_of(folder: Path) -> dict[str, np.ndarray]:
    """Inputs of the largest warm-up request of `rank`."""
    found: dict[str, np.ndarray] = {}
    records = tf.data.TFRecordDataset([str(folder / EXTRA / "tf_serving_warmup_requests")])
    for record in records.as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        request = log.predict_log.request
        if request.model_spec.signature_name == RANK:
            inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
            if not found or len(inputs["user_index"]) > len(found["user_index"]):
                found = inputs
    return found


def of_one_user(
    request: dict[str, np.ndarray], contract: Contract, candidates: int
) -> dict[str, np.ndarray]:
    """The inputs of `rank` for the first user of a request, and so many of its candidates."""
    items = {name for name, _ in contract.of_side("item")}
    found = {}
    for name, value in request.items():
        per_item = name.split("__")[0] in items or name == "user_index"
        found[name] = value[np.arange(candidates) % len(value)] if per_item else value[:1]
    return found | {"user_index": np.zeros(candidates, np.int32)}


def compare_folders(folders: dict[str, Path], rounds: int) -> dict[str, Any]:
    """CPU microseconds and operations of `rank` by version and number of candidates."""
    served = {name: SavedModel.load(1, folder) for name, folder in folders.items()}
    # The C interface records no operations.
    recorded = {name: PythonSession(folder, records=True) for name, folder in folders.items()}
    contract = next(iter(served.values())).contract
    whole = request_of(next(iter(folders.values())))
    result: dict[str, Any] = {"microseconds": {}, "operations": {}}
    rng = np.random.default_rng(0)
    for N in CANDIDATES:
        request = of_one_user(whole, contract, N)
        answers = {name: one.signatures[RANK](request) for name, one in served.items()}
        first = next(iter(answers.values()))
        for name, answer in answers.items():
            for key, expected in first.items():
                np.testing.assert_allclose(answer[key], expected, 1e-4, 1e-5, err_msg=name)
        times: dict[str, list[float]] = {name: [] for name in served}
        for _ in range(rounds):
            for name in rng.permutation(list(served)).tolist():
                start = time.process_time()
                for _ in range(_CALLS):
                    served[name].signatures[RANK](request)
                times[name].append(1e6 * (time.process_time() - start) / _CALLS)
        medians = {name: round(float(np.median(values))) for name, values in times.items()}
        result["microseconds"][N] = medians
        result["operations"][N] = {
            name: operations(one, RANK, request) for name, one in recorded.items()
        }
        base = next(iter(medians.values()))
        for name, median in medians.items():
            count = result["operations"][N][name]
            print(f"| {N} | {name} | {median} | {median / base:.2f} | {count} |", flush=True)
    for one in served.values():
        one.retire()
    for session in recorded.values():
        session.close()
    return result


def operations(session: PythonSession, signature: str, request: dict[str, np.ndarray]) -> int:
    """Operations that the runtime recorded for one call, without inputs and outputs."""
    nodes = session.operations(session.definitions[signature], request)
    inside = [n for n in nodes if not re.search(r" = _(Arg|Retval|Send|Recv)\(", n.timeline_label)]
    return len(inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="NAME=FOLDER", help="the first is the base")
    parser.add_argument("--rounds", type=int, default=60, help="turns of each version")
    parser.add_argument("--save", type=Path, help="write the reference case as a version here")
    options = parser.parse_args()
    if options.save:
        save_reference(options.save)
        return
    if not options.versions:
        parser.error("expected NAME=FOLDER of at least one version, or --save FOLDER")
    folders = {n: Path(f) for n, _, f in (one.partition("=") for one in options.versions)}
    print("| candidates | version | CPU µs | ratio | operations |\n" + "|" + " --- |" * 5)
    print(json.dumps(compare_folders(folders, options.rounds)))


if __name__ == "__main__":
    main()
