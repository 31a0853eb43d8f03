"""From files of any format to typed events and rejects.

A place is opened (`places`, `compressed`), cut into records (`lines`), parsed (`delimited`,
`json_lines`, `parquet`, `orc`), made one row for each item of a list and given the columns that are
made of others (`derive`), and typed (`parse` a column, `normalise` a row); `sources` joins
the first three.

Public face: `sources.read`, `sources.Shard`, `sources.Chunk`, `inputs`, `normalise.normalise`,
`parse`, `derive`, `drift`, `erasure`, `log_end`, `places`, `ranges`.
"""
