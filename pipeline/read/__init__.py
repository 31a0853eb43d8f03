"""From files of any format to typed events and rejects.

A place is opened (`places`, `compressed`), cut into records (`lines`), parsed (`delimited`,
`json_lines`, `parquet`, `orc`) and typed (`normalise`); `sources` joins the first three.

Public face: `sources.read`, `sources.Shard`, `sources.Chunk`, `inputs`, `normalise.normalise`,
`drift`, `erasure`, `log_end`, `places`, `ranges`.
"""
