"""Where the feature store's values lie in Redis.

    multigate:NAME:SCHEMA:current           JSON: generation, cut_off, and rows by side
    multigate:NAME:SCHEMA:loading           who loads at the moment
    multigate:NAME:SCHEMA:GENERATION:u:ID   the features of a user, a JSON list in the contract's
    multigate:NAME:SCHEMA:GENERATION:i:ID   order; of an item

A new snapshot is written beside the one in use; then `current` moves on, in one step, and what it
left behind expires.  The schema is part of the key, so that a model never reads features of another
contract.  The client of a cluster would need keys on one node; one Redis, or one with replicas, is
what this is for.
"""

from multigate.configs.contract import Side

SIDES: tuple[tuple[Side, str, str], ...] = (("user", "users", "u"), ("item", "items", "i"))
"""Side, name of its part of a snapshot, and letter of its keys."""


def prefix(name: str, schema: str) -> str:
    """What all keys of a model begin with."""
    return f"multigate:{name}:{schema}"


def current(begin: str) -> str:
    """The key of the generation in use."""
    return f"{begin}:current"


def loading(begin: str) -> str:
    """The key of whoever loads."""
    return f"{begin}:loading"


def rows(begin: str, generation: str, letter: str) -> str:
    """What the keys of one side's rows begin with; the id follows."""
    return f"{begin}:{generation}:{letter}:"
