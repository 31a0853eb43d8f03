"""From a checkpoint to a SavedModel version that is safe to serve.

Public face: `export.export`, and the names of files and signatures: `export.EXTRA`, `graph.ROWS`,
`graph.RANK`, `graph.RANK_ITEMS`, `graph.WATCH`.
"""
