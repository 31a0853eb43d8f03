"""Models of other libraries on the same examples, which ours must beat.

Public face: `lightgbm_baseline.fit`, `table.Tabulator` and `table.unmatched`.
"""
