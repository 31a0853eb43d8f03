"""Heads: what a task's tower outputs mean, its loss, and the one number that it predicts.

A tower has K outputs per row.  A head turns them into the task's logit (B,): of a binary task the
logit of the probability, of a regression task the prediction of the transformed, standardised
label.  Everything after the ranker (scores, metrics, calibration, parity) reads that number only,
so that a loss is chosen in one place.  A head has no weights of its own.

Notation: y a target on the scale of the logit, o_0 .. o_{K-1} a row's outputs.  Constants that no
weight changes are left out of the losses.

Public face: `head.Head`, which the classes of `location`, `censored`, `ordinal` and `zero_inflated`
are; `model.ranker.make_heads` chooses among them.
"""
