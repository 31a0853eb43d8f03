"""How long a version takes to load into a process that evaluates it.

    python benchmarks/loading.py --model_base_path demo-out/models/demo [--rounds 7]

`runtime.signature` loads it through TensorFlow's C interface, as the server does; the other loader
is TensorFlow's Python, `tf.saved_model.load`, which wraps every function of the graph.  They load
the same file in turns, and answer a request alike.  Prints a table and, last, one JSON
line with the median and the best time of each, in milliseconds, and the median of the rounds'
ratios.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.runtime import inputs_of
from benchmarks.turns import cells, summary

from multigate.runtime.signature import load_signatures
from multigate.serving.core.layout import RANK
from multigate.serving.versions.folders import scan


def load_python(folder: Path) -> dict[str, Any]:
    """The signatures through TensorFlow's Python, arrays in and arrays out."""
    model = tf.saved_model.load(str(folder))

    def call(name: str) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
        signature = model.signatures[name]
        return lambda inputs: {key: value.numpy() for key, value in signature(**inputs).items()}

    return {name: call(name) for name in model.signatures}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    folder = next(iter(scan(options.model_base_path).values()))
    inputs = inputs_of(options.model_base_path, 100, 1)[0]
    times: dict[str, list[float]] = {"c": [], "python": []}
    for number in range(options.rounds + 1):
        answers = []
        for name, load in (("c", load_signatures), ("python", load_python)):
            began = time.perf_counter()
            signatures = load(folder)
            seconds = time.perf_counter() - began
            answers.append(signatures[RANK](inputs))
            if number:  # the first round imports and compiles
                times[name].append(1e3 * seconds)
        ours, theirs = answers
        for output, value in theirs.items():
            np.testing.assert_allclose(ours[output], value, rtol=1e-4, atol=1e-5)
    found = summary(times)
    print("| C interface, ms: median (best) | Python, ms | ratio |\n| --- | --- | --- |")
    print(f"| {cells(found)} |")
    print(json.dumps({"version": str(folder), "rounds": options.rounds, **found}))


if __name__ == "__main__":
    main()
