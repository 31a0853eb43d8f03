"""What a caller installs: the client of Rank, Recommend and Explain, and the health probe.

Imports grpcio and protobuf, nothing of TensorFlow or NumPy.  The distribution `multigate-client`
holds these modules under the name `multigate_client` (clients/python).  Public face: `RankClient`,
`Ranking`, `Recommendation`, `RankedItem`, `CallError`, `ServingError`, `parse_ids`.
"""

from multigate.configs.errors import ServingError
from multigate.serving.client.rank_client import (
    CallError,
    RankClient,
    RankedItem,
    Ranking,
    Recommendation,
    parse_ids,
)

__all__ = [
    "CallError",
    "RankClient",
    "RankedItem",
    "Ranking",
    "Recommendation",
    "ServingError",
    "parse_ids",
]
