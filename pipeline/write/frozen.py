"""The statistics and the contract of a folder of examples, and the fingerprint over both."""

from collections.abc import Mapping
from typing import Any

from multigate.configs.contract import Contract, FrozenContract, fingerprint
from multigate.configs.files import ExamplesFolder, write_json
from multigate.configs.statistics import Statistics


def write_frozen(
    files: ExamplesFolder[Any],
    contract: Contract,
    statistics: Statistics,
    hashes: Mapping[str, str],
) -> None:
    """Write `statistics.json` and `contract.json`.

    Args:
        files: where.
        contract: of the examples.
        statistics: of the training split.
        hashes: the vocabularies' fingerprints, by feature.
    """
    values = statistics.model_dump(mode="json")
    for name in ("priors", "vectors"):
        if not values[name]:
            del values[name]
    write_json(files.statistics, values)
    frozen = FrozenContract(
        contract=contract,
        schema_fingerprint=contract.schema_fingerprint(),
        data_fingerprint=fingerprint({"vocabularies": hashes, "statistics": values}),
    )
    write_json(files.contract, frozen.model_dump(mode="json"))
