"""What the serving graph is made of.

In the order of a call: `encoding` and `ngrams` (raw values to the blocks of `columns`), `matches`,
`embedding`, `cross`, `user_half` (products of user and item halves), `gates`, `experts`, `mixture`,
`towers`, `factors`, `linear`.  `item_table` holds features of known items, `weights` stores
matrices, and `trained` reads the trained ranker.

Public face: every module; `model.export.graph` puts them together.
"""
