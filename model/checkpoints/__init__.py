"""The checkpoint folder: a trained ranker with all that is needed to use it again.

Public face: `checkpoint.load`, `checkpoint.create`, `checkpoint.make_ranker`,
`checkpoint.read_history`, `history.Epoch`, `weights.save`.
"""
