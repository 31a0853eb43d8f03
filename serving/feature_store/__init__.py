"""The online feature store: a version's own snapshot, or Redis.

Public face: `backends`, `interface.FeatureStore`, `snapshot.Snapshot`, `snapshot_writer`,
`redis_loader`.
"""
