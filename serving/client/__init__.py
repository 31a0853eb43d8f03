"""What a caller installs: the client of Rank, Recommend and Explain, and the health probe.

Imports grpcio and protobuf, nothing of TensorFlow or NumPy.  Public face: `RankClient`.
"""

from multigate.serving.client.rank_client import RankClient

__all__ = ["RankClient"]
