"""From a checkpoint to a SavedModel version that is safe to serve.

`user_half` computes the user's part of the first layers once per user, `frozen_mixture` runs the
selected experts, `acceptance` judges hardening and rounding, `parity` compares with Keras.

Public face: `export.export`, and the names of files and signatures: `export.EXTRA`, `graph.ROWS`,
`graph.RANK`, `graph.RANK_ITEMS`, `graph.WATCH`.
"""
