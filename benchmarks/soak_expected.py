"""The right answers to the requests of `benchmarks/soak.py`, by another way than the server's.

    python benchmarks/soak_expected.py --model_base_path models/deskdrop < requests

TensorFlow's own Python loads the file and runs `serving_default` on one row per candidate; the
server runs `rank`, in which calls are joined and share their users' rows, through the C interface.
Rows of requests with every feature are written by hand here.  Requests by ids alone take the others
from the version's own snapshot, where the server asks Redis.

Reads one request a line, in hexadecimal digits, and prints, last, one JSON line: for each request
the scores of its candidates.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.servers import NAME

from multigate.configs.contract import FrozenContract
from multigate.serving.core.layout import rank_layout
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.feature_store.backends import open_feature_store
from multigate.serving.protos import ranking_pb2
from multigate.serving.request.rank_request import RequestReader
from multigate.serving.versions.folders import CONTRACT, scan

Answers = list[dict[int, float]]
"""For each request, the score of each candidate by its place."""


def expected_answers(base: Path, requests: list[bytes]) -> Answers:
    """The right answers, computed in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--model_base_path", str(base)],
        input="\n".join(one.hex() for one in requests),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    scores = json.loads(done.stdout.splitlines()[-1])
    return [dict(enumerate(of_request)) for of_request in scores]


def same(expected: dict[int, float], answer: Any) -> bool:
    """Whether a RankResponse has these scores, one of each candidate, best first."""
    scores = dict(zip(answer.item_index, answer.score, strict=True))
    return (
        len(answer.score) == len(expected)
        and scores.keys() == expected.keys()
        and list(answer.score) == sorted(answer.score, reverse=True)
        and all(
            abs(expected[place] - score) <= 1e-4 * max(1, abs(expected[place]))
            for place, score in scores.items()
        )
    )


def rows_by_hand(request: Any, names: list[str], item: str) -> dict[str, Any] | None:
    """Rows of `serving_default`, one per candidate; None where the request leaves a feature out.

    Args:
        request: a RankRequest, with lists as long as they may be.
        names: of the signature's inputs.
        item: the contract's item feature.
    """
    ids = request.candidates.item_id
    items = list(ids.texts.values or ids.integers.values)
    of_user = {**request.user, **request.context}
    rows: dict[str, Any] = {}
    for name in names:
        feature, _, what = name.partition("__")
        if feature == item:
            values = items
        elif feature in of_user:
            value = getattr(of_user[feature], of_user[feature].WhichOneof("kind"))
            values = [list(value.values) if hasattr(value, "values") else value] * len(items)
        elif feature in request.candidates.columns:
            column = request.candidates.columns[feature]
            values = list(getattr(column, column.WhichOneof("values")).values)
            if column.lengths:
                ends = np.cumsum(column.lengths)
                values = [values[e - n : e] for e, n in zip(ends, column.lengths, strict=True)]
        else:
            return None
        if what == "present":
            values = [True] * len(items)
        elif what == "length":
            values = [len(one) for one in values]
        rows[name] = values
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    folder = next(iter(scan(parser.parse_args().model_base_path).values()))
    import tensorflow as tf

    run = tf.saved_model.load(str(folder)).signatures["serving_default"]
    specs = run.structured_input_signature[1]
    frozen = FrozenContract.read(folder / CONTRACT)
    contract, schema = frozen.contract, frozen.schema_fingerprint
    store = open_feature_store(
        NAME, folder, contract, schema, "version", 1.0, "cut_off", ServerMetrics()
    )
    reader, layout = RequestReader(contract, 10_000, store), rank_layout(contract)

    def rows_from_snapshot(request: Any) -> dict[str, Any]:
        """A call's rows, each with its user's values."""
        inputs = reader.read(request).inputs
        return {
            name: np.repeat(inputs[name], len(inputs[contract.item]), axis=0)
            if layout.inputs[name].axis == "users"
            else inputs[name]
            for name in specs
        }

    found = []
    for line in sys.stdin:
        request = ranking_pb2.RankRequest.FromString(bytes.fromhex(line))
        rows = rows_by_hand(request, list(specs), contract.item) or rows_from_snapshot(request)
        answer = run(**{name: tf.constant(rows[name], spec.dtype) for name, spec in specs.items()})
        found.append(answer["score"].numpy().tolist())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
