"""The online feature store: where a Rank call's absent features come from.

A version's own snapshot (memory-mapped files), or Redis.

Public face: `backends`, `online_features.OnlineFeatures`, `snapshot.Snapshot`, `snapshot_writer`,
`redis_loader`.
"""
