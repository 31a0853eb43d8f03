"""Matches of several lists at once equal what is counted one by one."""

import math

import numpy as np
import tensorflow as tf

from multigate.configs.contract import LENGTH, MATCH, PRESENT, Contract
from multigate.configs.sections.base import parse
from multigate.model.export.frozen.matches import fingerprints, matches

CONTRACT = {
    "user": "user",
    "item": "item",
    "features": {
        "user": {"kind": "id", "side": "user"},
        "item": {"kind": "id", "side": "item", "missing": "indicator"},
        "tags": {"kind": "id_list", "side": "item", "max_length": 3},
        "seen": {"kind": "id_list", "side": "user", "share": "item", "max_length": 4},
        "liked": {"kind": "id_list", "side": "user", "share": "item", "max_length": 4},
        "shared": {"kind": "id_list", "side": "user", "share": "item", "max_length": 2},
        "topics": {"kind": "id_list", "side": "user", "share": "tags", "max_length": 4},
    },
    "tasks": {
        "click": {
            "group": "engagement",
            "type": "binary",
            "label": {"rule": "column", "column": "click"},
        }
    },
}
LISTS = {
    "seen": [["a", "b", "a", "c", "a"], ["", "", "b"]],  # the first loses its oldest entry
    "liked": [[], ["c"]],
    "shared": [["b", "b", "a"], ["a", ""]],
    "topics": [["x", "y", "x"], [""]],
}
ITEMS = ["a", "b", "", "c", "a"]  # the third is missing
TAGS = [["x"], ["y", "x"], [], ["", "x"], ["z"]]
USERS = [0, 0, 0, 1, 1]


def ragged(lists):
    """Texts (N, .) with junk behind their lengths, and the lengths."""
    width = max(map(len, lists)) + 1
    return tf.constant([[*one, *["a"] * (width - len(one))] for one in lists]), tf.constant(
        [len(one) for one in lists], tf.int64
    )


def test_lists_of_one_length_are_counted_together():
    contract = parse(Contract, CONTRACT, "contract")
    raw = {"item": tf.constant(ITEMS), "item" + PRESENT: tf.constant([i != "" for i in ITEMS])}
    for name, lists in {**LISTS, "tags": TAGS}.items():
        raw[name], raw[name + LENGTH] = ragged(lists)
    prints = fingerprints(contract, raw, [*LISTS, "item", "tags"])
    found = matches(contract, prints, list(LISTS), tf.constant(USERS))
    for name, lists in LISTS.items():
        kept = [one[-CONTRACT["features"][name]["max_length"] :] for one in lists]
        ids = [[tag] for tag in ITEMS] if name != "topics" else TAGS
        expected = [
            math.log1p(sum(kept[u].count(one) for one in own if one != ""))
            for u, own in zip(USERS, ids, strict=True)
        ]
        np.testing.assert_allclose(found[name + MATCH][:, 0], expected, rtol=1e-6, err_msg=name)
