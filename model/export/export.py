"""Export: a checkpoint becomes a numbered SavedModel version, checked before it is published.

Layout of a version, besides TensorFlow's own files:

    assets.extra/contract.json                  the contract with both fingerprints
    assets.extra/metrics.json                   test metrics of what is served, calibrated; losses
                                                and qualities by epoch
    assets.extra/sparsity.json                  experts in the file, hardening, parity
    assets.extra/reference.json                 what the test split looks like, see `reference`
    assets.extra/golden.json                    one request and its answer
    assets.extra/tf_serving_warmup_requests     as TensorFlow Serving replays them
    assets.extra/README.md                      model card
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from multigate.configs import progress
from multigate.configs.errors import DataError, ExportError
from multigate.configs.files import new_folder, write_json
from multigate.configs.lineage import check_examples
from multigate.configs.sections.model import ExportConfig
from multigate.configs.version_folders import new_version
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.examples import encode
from multigate.model.data.rows import read_rows
from multigate.model.evaluation import calibration as calibrations
from multigate.model.evaluation.evaluate import Predictions, summary, task_summary
from multigate.model.export import links, model_card, reference, sparsity, warmup_requests
from multigate.model.export.acceptance import Judge
from multigate.model.export.frozen.item_table import ItemTable
from multigate.model.export.graph import ServingGraph
from multigate.model.export.parity import check_parity
from multigate.model.ranker import scores
from multigate.runtime.errors import ModelRuntimeError
from multigate.runtime.signature import load_signatures

log = logging.getLogger(__name__)

EXTRA = "assets.extra"


@progress.stepwise("export", 7)
def export(
    checkpoint: Path,
    examples: Path,
    out: Path,
    *,
    version: int | None = None,
    finish: Callable[[Path, ExportConfig], None] | None = None,
) -> Path:
    """Export a checkpoint.

    Args:
        checkpoint: folder that `training.train` wrote, under either backend.
        examples: the examples that it was trained on.  The validation split decides about
            hardening, rounding and calibration; the test split is only reported, and used for the
            parity check.
        out: base folder of the versions.
        version: number of the version; by default the highest in `out` plus one.
        finish: called with the version's folder before it is published, to add files to it.

    Returns:
        `out/<version>`, complete.

    Raises:
        ExportError: the version exists, hardening or rounding costs more than its tolerance, the
            parity check failed, or the folder could not be written.  Nothing is published.
        ModelError: not a checkpoint, or it was trained on other examples.
        DataError: a split cannot be read.
    """
    if keras.backend.backend() != "tensorflow":
        raise ExportError(
            f"export writes TensorFlow graphs; Keras runs on {keras.backend.backend()!r}: set "
            "KERAS_BACKEND=tensorflow (a checkpoint trained on JAX exports to the same scores)"
        )
    target = out / str(new_version(out, version))
    progress.step("load")
    loaded = checkpoints.load(checkpoint)
    check_examples(checkpoint, loaded.contract, examples)
    options = loaded.config.export
    test = read_rows(examples, "test").once()
    table = test.spread(options.parity_rows).table
    judge = Judge(loaded.ranker, loaded.encoder, examples, options)
    progress.step("harden and round")
    hardening, rounding = judge.harden(), judge.round_weights()
    progress.step("score the test split")
    rows = encode(test, loaded.encoder, loaded.config.row_weight)
    contract, statistics = loaded.encoder.contract, loaded.encoder.statistics
    predictions = Predictions(loaded.ranker, contract, statistics, rows)
    progress.step("calibrate")
    calibration, found = links.fit(loaded, examples, predictions, rows)
    served = {
        task: keras.ops.convert_to_numpy(value)
        for task, value in scores.scores(
            contract, statistics, calibrations.apply(calibration, predictions.logits)
        ).items()
    }
    metrics: dict[str, Any] = {
        **summary(loaded.config, "test", rows, predictions),
        **task_summary(contract, "test", rows.labels, served),
        **found,
    }
    metrics["name"] = loaded.config.name
    metrics["split_by"] = loaded.config.pipeline.split.by
    metrics["training"] = checkpoints.read_history(checkpoint)
    metrics["training_warnings"] = checkpoints.read_warnings(checkpoint)
    metrics["weights"] = {"stored_as": options.weights, "tasks": rounding}
    progress.step("write the graph")
    items = None if options.items == "none" else ItemTable(loaded.encoder, examples)
    graph = ServingGraph(
        loaded.ranker,
        loaded.encoder,
        calibration,
        options.weights,
        items,
        precompute=options.items == "precomputed",
        buckets=options.xla,
        dispatch=options.dispatch,
        experts_per_row=predictions.experts_per_row,
    )
    try:
        with new_folder(target) as folder:
            graph.save(folder)
            progress.step("compare with the checkpoint")
            signatures = load_signatures(folder)
            parity = check_parity(
                signatures,
                loaded.ranker,
                loaded.encoder,
                table,
                options.parity_tolerance,
                calibration,
                items,
            )
            report = sparsity.report(
                loaded.ranker,
                graph.mixture,
                len(rows),
                predictions.experts_per_row,
                predictions.load,
                hardening,
                parity,
            )
            if items is not None:
                report["items"] = {
                    "known": len(items.ids),
                    "precomputed": options.items == "precomputed",
                    "bytes": graph.item_bytes,
                    "as_of_the_cut_off": items.counters,
                }
            progress.step("write what goes with it")
            extra = folder / EXTRA
            extra.mkdir()
            write_json(extra / "contract.json", loaded.contract.model_dump(mode="json"))
            write_json(extra / "metrics.json", metrics)
            write_json(extra / "sparsity.json", report)
            write_json(
                extra / "reference.json",
                reference.report(contract, test.table, rows.features, served),
            )
            warmup_requests.write(
                extra,
                loaded.config.name,
                loaded.encoder.contract,
                table,
                signatures,
                items,
                options.xla,
            )
            (extra / "README.md").write_text(
                model_card.text(loaded.config, loaded.contract, metrics, report), encoding="utf-8"
            )
            if finish is not None:
                finish(folder, options)
    except (OSError, tf.errors.OpError, ModelRuntimeError) as error:
        reason = " ".join(str(error).split())[-200:]  # TensorFlow's reason is at the end
        raise ExportError(
            f"{target}: could not be written: {reason}; nothing was published; free space or "
            "choose another folder, then export again"
        ) from error
    except DataError as error:  # another export published the same number meanwhile
        raise ExportError(f"{error}; export again") from None
    log.info("published %s", target)
    return target
