"""The online feature store: a version's own snapshot, or Redis.

Public face: `backends`, `interface.OnlineFeatures`, `snapshot.Snapshot`, `snapshot_writer`,
`redis_loader`.
"""
