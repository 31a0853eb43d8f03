"""What the parts of the model besides experts and gates cost per served call.

    python benchmarks/served_cost.py [--seconds S] [--candidates N]

Signature `rank`, one user, on the features and the model of the Deskdrop preset with random
weights, called through a Session callable as the server does.  All variants are timed in turn
within one run.  `none` has none of them; every other variant reads the rates of past labels, and
all but `rates` have one part more: `all` has length, match and the wide term, and each part after
it stands beside these three.  Prints a table and, last, one JSON line with the ratios to `none`.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from inference import PLAIN, callable_of, make_case, make_table, measure

from multigate.configs.config import load
from multigate.model.data.raw import raw_values, take
from multigate.model.export.graph import RANK

VARIANTS: dict[str, dict[str, Any]] = {
    "none": PLAIN,
    "rates": PLAIN,
    "length": PLAIN | {"lists": {"length": True, "match": False}},
    "match": PLAIN | {"lists": {"length": False, "match": True}},
    "wide": PLAIN | {"wide": {}},
    "crosses": PLAIN | {"wide": {"crosses": 400_000}},  # of regions and countries by articles
    "factors": PLAIN | {"factors": {}},  # of user and item, in every task
    "all": {},
    "attention": {},
    "sequence": {},
    "cross": {"cross": {}},
}
POOLINGS = {"attention": "attention", "sequence": "sequence"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each variant")
    parser.add_argument("--candidates", type=int, default=100, help="items of a call")
    options = parser.parse_args()
    preset = load("deskdrop")
    model, tasks, N = preset.model, len(preset.contract.tasks), options.candidates
    gate = model.gate.model_dump(mode="json")
    with tempfile.TemporaryDirectory() as scratch:
        calls, sessions = {}, []
        for name, changes in VARIANTS.items():
            experts, units = model.experts.count, list(model.experts.units)
            _, encoder, servable = make_case(
                "deskdrop",
                experts,
                units,
                tasks,
                gate,
                changes,
                pooling=POOLINGS.get(name),
                rates=name != "none",
            )
            servable.save(Path(scratch) / name)
            contract = encoder.contract
            user = [feature for feature, _ in contract.of_side("user", "context")]
            item = [feature for feature, _ in contract.of_side("item")]
            table = make_table(encoder, N)
            raw = take(raw_values(contract, table, user), slice(1))
            raw |= raw_values(contract, table, item)
            raw["user_index"] = np.zeros(N, np.int32)
            raw["task_weights"] = np.ones((1, tasks), np.float32)
            calls[name], session = callable_of(Path(scratch) / name, RANK, raw)
            sessions.append(session)
        times, _ = measure(calls, options.seconds)
        for session in sessions:
            session.close()
    ratios = {name: round(value / times["none"], 3) for name, value in times.items()}
    print("| variant | microseconds | ratio |\n| --- | --- | --- |")
    for name, value in times.items():
        print(f"| {name} | {value:.0f} | {ratios[name]} |")
    print(json.dumps({"candidates": N, "ratios": ratios}))


if __name__ == "__main__":
    main()
