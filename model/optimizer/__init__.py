"""Adam for all weights: updates the rows of embedding tables that a batch reads.

Public face: `optimizers.make_optimizer`, `optimizers.averaged`.
"""
