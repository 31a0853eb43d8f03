"""What an exported model costs per call, beside dense weights and a hand-written limit.

    python benchmarks/inference.py [--quick] [--seconds S]
        [--results FILE [--models COUNT]] [--picture PNG]

Every variant is a model on disk, called as the server calls it, on raw features, and all variants
of a case are timed in turn within one run:

    rank        ours, one user and N candidates
    rows        ours, N rows with the user repeated
    dense       the same weights, every expert on every one of the N rows
    onnx        the same in ONNX Runtime, one user and N candidates: it looks up ids in its graph
    onnx_codes  the same without look-ups, on codes and N rows with the user repeated
    limit       written by hand, one user and N candidates: constant gates' selected experts only,
                or experts on exactly the selected rows with routing and mixing weights given

ONNX Runtime takes part where onnx and onnxruntime are installed.  Every runtime has one thread, and
takes texts as it does with least work: TensorFlow as bytes, which is how requests bring them, ONNX
Runtime as str.

The ceiling is E / union: how many times fewer experts a row needs than there are.
With --results every case is kept in a file, one JSON line each, and cases that are there already
are not measured again, so that the grid can be run in pieces (--models: so many new models, then
stop) and drawn at the end (--picture).

`exported_versions.py` compares versions on disk instead.

The models read no match and length of lists and have no wide term: `served_cost.py` says what these
cost.

Times are lower quartiles, of wall time and of the process's CPU time.  --presets measures models
of the size of the presets demo and deskdrop instead.  Prints a table and, last, one JSON line with
the ratios of the reference case (Deskdrop's features, E = 16, k = 2, two tasks, width 256, 500
candidates).
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# As the server does.  Threads belong to the process: a session's own number of them is not read
# where TensorFlow has computed before, as it has here.  A second thread would wake and look for
# work at each operation, which adds up to a half to a call's CPU time.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
import pyarrow as pa
import tensorflow as tf
from dense_onnx import dense_onnx

from multigate.configs.config import Config, load
from multigate.configs.sections.base import parse
from multigate.configs.statistics import Statistics
from multigate.model.checkpoints.checkpoint import make_ranker
from multigate.model.data.encoding import Encoder
from multigate.model.data.raw import Raw, raw_values, take
from multigate.model.export.frozen.encoding import GraphEncoder, raw_inputs
from multigate.model.export.graph import RANK, ROWS, ServingGraph
from multigate.model.ranker import scores
from multigate.model.ranker.factors.term import Factors, PairTables
from multigate.runtime.memory import keep_freed
from multigate.runtime.session import Session

keep_freed()  # as the server does
K = 2
_CALLS = 5  # between two readings of the clocks
VOCABULARIES = {"user_id": 1900, "item_id": 3000, "movie_id": 3700, "region": 80, "country": 20}
VOCABULARIES |= {"topic": 20, "tags": 200, "hour": 24}
REFERENCE = {"shape": "deskdrop", "experts": 16, "units": [256], "tasks": 2, "candidates": 500}


PLAIN: dict[str, Any] = {"lists": {"length": False, "match": False}, "wide": None}


def make_case(
    shape: str,
    experts: int,
    units: list[int],
    tasks: int,
    gate: dict[str, Any],
    options: dict[str, Any] = PLAIN,
    pooling: str | None = None,
    rates: bool = True,
) -> Any:
    """A servable with random weights on a preset's features.

    `pooling` replaces that of lists; `rates` says whether it reads rates of past labels.
    """
    preset = load(shape)
    of_labels = preset.contract.label_counters()
    values = preset.model_dump(mode="json")
    task = next(t for t in values["contract"]["tasks"].values() if t["type"] == "binary")
    values["contract"]["tasks"] = {f"task_{number}": task for number in range(tasks)}
    values["evaluation"] = {}  # its rules name the preset's tasks
    for name, feature in list(values["contract"]["features"].items()):
        if name in of_labels and not rates:
            del values["contract"]["features"][name]
            continue
        for kind in ("label_count", "label_rate", "label_mean"):
            feature.pop(kind, None)  # the model sees a number; the labels' tasks are not here
        if pooling is not None and feature["kind"] == "id_list":
            feature["pooling"] = pooling
    values["model"] = {
        "embedding_dim": values["model"]["embedding_dim"],
        "experts": {"count": experts, "units": units},
        "gate": gate,
        "towers": {"units": [32]},
        **options,
    }
    config = parse(Config, values, shape)
    contract = config.contract
    vocabularies = {}
    for name, feature in contract.features.items():
        if getattr(feature, "share", "none") is None:
            count = VOCABULARIES[name]
            ids = np.random.default_rng(0).choice(2**40, count, replace=False)
            kind = pa.string() if feature.dtype == "string" else pa.int64()
            vocabularies[name] = pa.array(ids).cast(kind)
    label = {"count": 1, "masked": 0, "mean": 0.2, "std": 0.4}
    number = {"count": 1, "missing": 0, "mean": 0.0, "std": 1.0}
    numbers = {n: number for n, f in contract.features.items() if f.kind == "number"}
    for name in numbers:
        if contract.features[name].scale == "buckets":
            edges = np.linspace(0, 3, contract.features[name].buckets + 1)[1:-1]
            numbers[name] = number | {"boundaries": edges.tolist()}
    statistics = {
        "features": numbers,
        "tasks": dict.fromkeys(contract.tasks, label),
        "rows": {},
    }
    encoder = Encoder(contract, parse(Statistics, statistics, shape), vocabularies)
    ranker = make_ranker(contract, config.model, encoder, seed=0)
    rng = np.random.default_rng(1)
    for table in ranker.embedder.tables.values():
        table.embeddings.assign(rng.normal(0, 0.3, table.embeddings.shape))
    for table in ranker.wide.tables.values() if ranker.wide is not None else ():
        table.embeddings.assign(rng.normal(0, 0.3, table.embeddings.shape))
    if config.model.factors is not None:  # of user and item, in every task
        ids = contract.user, contract.item
        width, none = tasks * config.model.factors.width, np.zeros(0, np.float32)
        of_both = [
            rng.normal(0, 0.3, (encoder.rows(name), width)).astype(np.float32) for name in ids
        ]
        made = PairTables(*of_both, np.arange(tasks, dtype=np.int32), none, none)
        ranker.factors = Factors({ids: made}, tasks)
    for mixed in ranker.mixture.gates:
        if mixed.static:  # tasks choose their experts independently
            mixed.bias.assign(rng.normal(0, 1, mixed.bias.shape))
    return ranker, encoder, ServingGraph(ranker, encoder)


def make_table(encoder: Encoder, rows: int) -> pa.Table:
    """Random rows over the vocabularies."""
    contract, rng = encoder.contract, np.random.default_rng(2)
    columns = {}
    for name, feature in contract.features.items():
        if feature.kind == "position":
            columns[name] = pa.array(np.ones(rows, np.int64))
            continue
        if feature.kind == "number":
            columns[name] = pa.array(rng.uniform(0, 3, rows))
            continue
        known = encoder.vocabularies[contract.vocabulary_of(name)]
        if feature.kind == "id":
            columns[name] = known.take(pa.array(rng.integers(0, len(known), rows)))
        else:
            offsets = np.arange(rows + 1, dtype=np.int32) * feature.max_length
            values = known.take(pa.array(rng.integers(0, len(known), offsets[-1])))
            columns[name] = pa.ListArray.from_arrays(pa.array(offsets), values)
    return pa.table(columns)


def save(folder: Path, name: str, function: Callable[..., Any], specs: Any, tables: Any) -> None:
    """Save one hand-written signature."""
    concrete = tf.function(function, autograph=False).get_concrete_function(**specs)
    root = tf.Module()
    root.tables = tables
    root.weights = list(concrete.graph.variables)
    tf.saved_model.save(root, str(folder), signatures={name: concrete})


def dense_rows(ranker: Any, encoder: Encoder, folder: Path) -> None:
    """The same weights without selection: every expert on every row."""
    encode = GraphEncoder(encoder)
    names = [name for name, _ in encoder.contract.of_side("user", "item", "context")]

    def score(**raw: Any) -> dict[str, Any]:
        x = ranker.embedder(encode(raw, names))
        N, E = tf.shape(x)[0], len(ranker.mixture.experts)
        weights = tf.stack(
            [
                tf.broadcast_to(gate.route(x, False, None).weights, [N, E])
                for gate in ranker.mixture.gates
            ]
        )
        results = tf.stack([expert(x) for expert in ranker.mixture.experts])
        return finish(ranker, encoder, tf.unstack(tf.einsum("tne,enu->tnu", weights, results)))

    save(folder, ROWS, score, raw_inputs(encoder.contract, names), encode.tables)


def limit(ranker: Any, encoder: Encoder, folder: Path, encoded: Any) -> None:
    """Selected experts only, with routing given: constants made for these very rows."""
    encode = GraphEncoder(encoder)
    contract = encoder.contract
    user = [name for name, _ in contract.of_side("user", "context")]
    item = [name for name, _ in contract.of_side("item")]
    gates, experts = ranker.mixture.gates, ranker.mixture.experts
    N, E, T = len(encoded[contract.item]), len(experts), len(gates)
    x = ranker.embedder(encoded)
    weights = np.stack(
        [np.broadcast_to(np.asarray(g(x, ids=ranker.ids(encoded)).weights), (N, E)) for g in gates]
    )  # (T, N, E)
    used = (weights != 0).any(axis=0)
    rows = [np.flatnonzero(used[:, e]).astype(np.int32) for e in range(E)]
    kept = [e for e in range(E) if len(rows[e])]
    place = {(e, b): p for p, (e, b) in enumerate((e, b) for e in kept for b in rows[e])}
    mix = sorted(
        (t * N + b, place[e, b], weights[t, b, e])
        for t, b, e in zip(*np.nonzero(weights), strict=True)
    )
    names = list(ranker.embedder.widths)
    order = np.repeat([name in user for name in names], list(ranker.embedder.widths.values()))
    stacks = [experts[e].dense_layers for e in kept]
    kernels = [stack[0].kernel.value.numpy() for stack in stacks]
    of_user = [tf.Variable(kernel[order]) for kernel in kernels]
    of_item = [tf.Variable(kernel[~order]) for kernel in kernels]

    def score(**raw: Any) -> dict[str, Any]:
        users_x = ranker.embedder(encode(raw, user), names=user)
        items_x = ranker.embedder(encode(raw, item), names=item)
        results = []
        for s, e in enumerate(kept):
            once = tf.matmul(users_x, of_user[s]) + stacks[s][0].bias.value  # (1, U1)
            chosen = items_x if len(rows[e]) == N else tf.gather(items_x, rows[e])
            y = tf.nn.relu(tf.matmul(chosen, of_item[s]) + once)
            for layer in stacks[s][1:]:
                y = tf.nn.relu(tf.nn.bias_add(tf.matmul(y, layer.kernel.value), layer.bias.value))
            results.append(y)
        if gates[0].static:
            w = weights[:, 0, kept]
            outputs = [
                tf.add_n([results[s] * w[t, s] for s in range(len(kept)) if w[t, s]])
                for t in range(T)
            ]
        else:
            matrix = tf.raw_ops.SparseTensorToCSRSparseMatrix(
                indices=np.array([(row, column) for row, column, _ in mix], np.int64),
                values=np.array([value for _, _, value in mix], np.float32),
                dense_shape=np.array([T * N, len(place)], np.int64),
            )
            mixed = tf.raw_ops.SparseMatrixMatMul(a=matrix, b=tf.concat(results, axis=0))
            outputs = tf.split(mixed, T)
        return finish(ranker, encoder, outputs)

    save(folder, RANK, score, raw_inputs(contract, [*user, *item]), encode.tables)


def finish(ranker: Any, encoder: Encoder, outputs: list[Any]) -> dict[str, Any]:
    """Towers, scores and their combination."""
    contract = encoder.contract
    towers = {t: ranker.towers[t](o) for t, o in zip(contract.tasks, outputs, strict=True)}
    found = scores.scores(contract, encoder.statistics, ranker.logits(towers))
    return found | {"score": tf.add_n(list(found.values()))}


def callable_of(folder: Path, signature: str, raw: Raw) -> tuple[Callable[[], Any], Session]:
    """A call without arguments, as the server makes it, and its session."""
    session = Session(folder)
    definition = session.definitions[signature]
    run = session.runner(definition)
    values = [in_bytes(raw[name]) for name in sorted(definition.inputs)]
    outputs = sorted(definition.outputs)
    return lambda: dict(zip(outputs, run(*values), strict=True)), session


def in_bytes(values: np.ndarray) -> np.ndarray:
    """Texts as requests bring them; other values as they are."""
    if values.dtype != object:
        return values
    found = np.empty(values.shape, object)
    found.flat = [text.encode() if isinstance(text, str) else text for text in values.flat]
    return found


def measure(
    calls: dict[str, Callable[[], Any]], seconds: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Microseconds of each call, wall time and CPU time, with the variants taking turns."""
    rng = np.random.default_rng(0)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(5):
            call()
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end:
        for name in rng.permutation(list(calls)).tolist():
            began, start = time.perf_counter(), time.process_time()
            for _ in range(_CALLS):
                calls[name]()
            took = time.perf_counter() - began, time.process_time() - start
            times[name].append((1e6 * took[0] / _CALLS, 1e6 * took[1] / _CALLS))
    quartiles = {name: np.percentile(values, 25, axis=0) for name, values in times.items()}
    walls = {name: float(wall) for name, (wall, _) in quartiles.items()}
    return walls, {name: float(cpu) for name, (_, cpu) in quartiles.items()}


def run_case(
    shape: str,
    experts: int,
    units: list[int],
    tasks: int,
    static: bool,
    sizes: list[int],
    seconds: float,
) -> list[dict[str, Any]]:
    """Measure all variants of one model at some numbers of candidates."""
    gate = {"name": "topk", "num_selected": K, "static": static}
    ranker, encoder, servable = make_case(shape, experts, units, tasks, gate)
    contract = encoder.contract
    user = [name for name, _ in contract.of_side("user", "context")]
    item = [name for name, _ in contract.of_side("item")]
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        servable.save(folder / "ours")
        dense_rows(ranker, encoder, folder / "dense")
        for N in sizes:
            table = make_table(encoder, N)
            repeated = pa.table(
                {
                    name: table[name].take(np.zeros(N, np.int64)) if name in user else table[name]
                    for name in table.column_names
                }
            )
            encoded = encoder(repeated)
            limit(ranker, encoder, folder / f"limit-{N}", encoded)
            rows = raw_values(contract, repeated, [*user, *item])
            rank = take(raw_values(contract, table, user), slice(1)) | {
                name: rows[name] for name in rows if name.split("__")[0] in item
            }
            weights = {
                "user_index": np.zeros(N, np.int32),
                "task_weights": np.ones((1, tasks), np.float32),
            }
            opened = {
                "rank": callable_of(folder / "ours", RANK, rank | weights),
                "rows": callable_of(folder / "ours", ROWS, rows),
                "dense": callable_of(folder / "dense", ROWS, rows),
                "limit": callable_of(folder / f"limit-{N}", RANK, rank),
            }
            calls = {name: call for name, (call, _) in opened.items()}
            codes = dense_onnx(ranker, encoder, encoded, folder, encoded=True)
            if (onnx := dense_onnx(ranker, encoder, rank, folder)) is not None:
                calls |= {"onnx": onnx, "onnx_codes": codes}
            answers = {name: call() for name, call in calls.items()}
            for name, answer in answers.items():
                for task in contract.tasks:
                    np.testing.assert_allclose(
                        answer[task], answers["dense"][task], rtol=1e-4, atol=1e-5, err_msg=name
                    )
            walls, cpus = measure(calls, seconds)
            for _, session in opened.values():
                session.close()
            union = float(ranker.forward(encoded).mixed.experts_per_row)
            case = {
                "shape": shape,
                "experts": experts,
                "units": units,
                "tasks": tasks,
                "static": static,
                "candidates": N,
                "union": union,
                "ceiling": experts / union,
                "mode": servable.mixture.mode,
                "microseconds": {name: round(value) for name, value in walls.items()},
                "cpu_microseconds": {name: round(value) for name, value in cpus.items()},
            }
            found.append(case)
            print_case(case)
    return found


def print_case(case: dict[str, Any]) -> None:
    us, cpus = case["microseconds"], case.get("cpu_microseconds", {})

    def both(name: str) -> str:
        return f"{us.get(name, '')}" + (f" ({cpus[name]})" if name in cpus else "")

    print(
        f"| {case['shape']} | {case['experts']} | {'x'.join(map(str, case['units']))} "
        f"| {case['tasks']} | {'static' if case['static'] else 'per example'} "
        f"| {case['candidates']} | {case['ceiling']:.1f} | {both('rank')} | {both('rows')} "
        f"| {both('dense')} | {both('onnx')} | {both('onnx_codes')} | {both('limit')} "
        f"| {us['dense'] / us['rank']:.1f} | {us['rank'] / us['limit']:.2f} |",
        flush=True,
    )


PRESET_MODELS: list[Any] = [("demo", 8, [64], 8), ("deskdrop", 8, [128], 6)]
"""Features, experts, units and tasks of the presets; all tasks binary, all gates Top-k."""


def models(quick: bool, presets: bool) -> Iterator[dict[str, Any]]:
    """The grid: what `run_case` takes besides sizes and seconds."""
    if presets:
        grid: Any = PRESET_MODELS
    elif quick:
        grid = [("deskdrop", 16, [256], 2)]
    else:
        shapes, units = ["deskdrop", "movielens"], [[256], [256, 256]]
        grid = itertools.product(shapes, [8, 16, 64], units, [2, 8])
    for shape, experts, units, tasks in grid:
        for static in (False,) if presets else (True, False):
            yield {
                "shape": shape,
                "experts": experts,
                "units": units,
                "tasks": tasks,
                "static": static,
            }


def ratios(cases: list[dict[str, Any]]) -> dict[str, float | None]:
    """The reference case's ratios."""
    us = {c["static"]: c["microseconds"] for c in cases if REFERENCE.items() <= c.items()}
    per_example = us[False]
    onnx = per_example.get("onnx", per_example.get("onnx_codes"))
    return {
        "static_over_limit": round(us[True]["rank"] / us[True]["limit"], 3),
        "per_example_over_limit": round(per_example["rank"] / per_example["limit"], 3),
        "speedup_dense": round(per_example["dense"] / per_example["rank"], 2),
        "speedup_onnx_dense": None if onnx is None else round(onnx / per_example["rank"], 2),
        "rank_over_rows": round(per_example["rows"] / per_example["rank"], 2),
    }


def draw(cases: list[dict[str, Any]], path: Path) -> None:
    """Speed-up over the dense model by candidates; the ceiling E / union at the right of each."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter

    shapes = list(dict.fromkeys(case["shape"] for case in cases))
    counts = sorted({case["experts"] for case in cases})
    kinds = sorted({(case["static"], case["tasks"]) for case in cases}, reverse=True)
    colours = dict(zip(kinds, ("tab:blue", "tab:cyan", "tab:red", "tab:orange"), strict=False))
    figure, axes = plt.subplots(
        len(shapes), len(counts), figsize=(4 * len(counts), 3.2 * len(shapes)), squeeze=False
    )
    lines = {}
    for (row, shape), (column, experts) in itertools.product(enumerate(shapes), enumerate(counts)):
        axis = axes[row][column]
        groups: dict[Any, list[dict[str, Any]]] = {}
        for case in cases:
            if (case["shape"], case["experts"]) == (shape, experts):
                key = (case["static"], case["tasks"], "x".join(map(str, case["units"])))
                groups.setdefault(key, []).append(case)
        for (static, tasks, units), group in sorted(groups.items(), reverse=True):
            group.sort(key=lambda c: c["candidates"])
            sizes = [c["candidates"] for c in group]
            speed = [c["microseconds"]["dense"] / c["microseconds"]["rank"] for c in group]
            name = f"{'static' if static else 'per example'}, {tasks} tasks, {units}"
            colour, style = colours[static, tasks], "--" if "x" in units else "-"
            (lines[name],) = axis.plot(sizes, speed, style, color=colour, marker="o", markersize=3)
            ceiling = group[-1]["ceiling"]
            axis.plot(sizes[-1] * 1.6, ceiling, marker="_", markersize=12, color=colour)
        axis.set(xscale="log", yscale="log", title=f"{shape}, {experts} experts")
        axis.axhline(1.0, color="grey", linewidth=0.8)
        axis.yaxis.set_major_locator(FixedLocator([0.5, 1, 2, 3, 5, 8, 12, 16, 24]))
        axis.xaxis.set_major_locator(FixedLocator(sorted({c["candidates"] for c in cases})))
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_formatter(ScalarFormatter())
            side.set_minor_formatter(NullFormatter())
        axis.set_xlabel("candidates")
        axis.set_ylabel("dense / rank")
    figure.suptitle("Times faster than every expert on every row; bars at the right: E / union")
    figure.legend(lines.values(), lines.keys(), loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the reference case only")
    parser.add_argument("--presets", action="store_true", help="models like those of the presets")
    parser.add_argument("--seconds", type=float, default=2.0, help="per variant and case")
    parser.add_argument("--results", type=Path, help="keep every case here, as JSON lines")
    parser.add_argument("--models", type=int, help="measure at most so many new models")
    parser.add_argument("--picture", type=Path, help="draw the kept cases here")
    options = parser.parse_args()
    few = options.quick or options.presets
    sizes = [1, 100, 500] if few else [1, 100, 500, 2000]
    cases: list[dict[str, Any]] = []
    if options.results and options.results.exists():
        lines = options.results.read_text(encoding="utf-8").splitlines()
        cases = [json.loads(line) for line in lines]
    print(
        "| features | E | width | tasks | gates | candidates | ceiling | rank µs (CPU) | rows "
        "| dense | onnx | onnx_codes | limit | dense / rank | rank / limit |"
    )
    print("|" + " --- |" * 15)
    for case in cases:
        print_case(case)
    measured = 0
    for model in models(options.quick, options.presets):
        known = {c["candidates"] for c in cases if model.items() <= c.items()}
        if known >= set(sizes):
            continue
        if options.models is not None and measured == options.models:
            break
        measured += 1
        new = run_case(**model, sizes=sizes, seconds=options.seconds)
        cases += new
        if options.results:
            with options.results.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(case) + "\n" for case in new)
    if options.picture:
        draw(cases, options.picture)
    if not any("onnx" in case["microseconds"] for case in cases):
        print("onnx and onnxruntime are not installed: that column is left out")
    if len([c for c in cases if REFERENCE.items() <= c.items()]) >= 2:
        print(json.dumps(ratios(cases)))
    else:
        print(json.dumps({"cases": len(cases), "reference": None}))


if __name__ == "__main__":
    main()
