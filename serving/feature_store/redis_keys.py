"""The feature store's keys in Redis.

    multigate:NAME:SCHEMA:current           JSON: generation, cut_off, priors; for each of users and
                                            items its number of rows and its columns' names
    multigate:NAME:SCHEMA:loading           lock of the loader that runs now
    multigate:NAME:SCHEMA:GENERATION:u:ID   features of a user, a JSON list in the order of
                                            these columns
    multigate:NAME:SCHEMA:GENERATION:i:ID   features of an item, likewise

A new snapshot is written as a new generation beside the one in use.  Then `current` is switched to
it in one step, and the old generation expires.  The schema is part of the key, so that a model
never reads features of another contract.

Works with one Redis, or one with replicas.  Redis Cluster is not supported: one command reads keys
that would lie on several nodes.
"""

from multigate.configs.contract import Side

SIDES: tuple[tuple[Side, str, str], ...] = (("user", "users", "u"), ("item", "items", "i"))
"""Side, its folder in a snapshot, and its letter in keys."""


def prefix(name: str, schema: str) -> str:
    """The prefix of all keys of a model."""
    return f"multigate:{name}:{schema}"


def current(begin: str) -> str:
    """The key of the generation in use."""
    return f"{begin}:current"


def loading(begin: str) -> str:
    """The key of the loader's lock."""
    return f"{begin}:loading"


def rows(begin: str, generation: str, letter: str) -> str:
    """The prefix of the keys of one side's rows; the id follows."""
    return f"{begin}:{generation}:{letter}:"
