"""From examples to a checkpoint: the loop over epochs, snapshots, warm start, guards.

Public face: `train.train`.
"""
