"""From examples to a checkpoint: the loop over epochs, snapshots, warm start, loss guard.

Public face: `train.train`, `train.Trained`.
"""
