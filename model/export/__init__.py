"""From a checkpoint to a SavedModel version that is safe to serve.

`graph` makes the signatures out of the parts in `frozen`, `acceptance` judges hardening and
rounding, `parity` compares with Keras.

Public face: `export.export`, and the names of files and signatures: `export.EXTRA`, `graph.ROWS`,
`graph.RANK`, `graph.RANK_ITEMS`, `graph.WATCH`, `graph.GATES`.
"""
