"""Candidate generation with tensorflow-recommenders: two towers retrieve items for the ranker.

The package runs on Keras 2 (`tf-keras`), which tensorflow-recommenders needs. The ranker and the
server never import Keras 2; they see the exported file only. From `model` this package imports only
modules without Keras, which both models share: the encoding of raw values, and the freezing of
files.
"""
