"""Candidate generation with tensorflow-recommenders: two towers that retrieve what is then ranked.

The package runs on Keras 2 (`tf-keras`), which tensorflow-recommenders is made for.  Keras 2 stays
here and behind the exported file: the ranker and the server never import it, and of `model` this
package imports only what knows no Keras: the encoding of raw values, which both models share.
"""
