"""Whole jobs made of the packages' stages: the demo, the nightly run, publication, the search.

Public face: `interface` (the names of the package itself), `examples.Examples`, `demo.run`,
`export.export`, `tune.tune`, `multistage.report`, `show`, `requests`, `lock`, `days.joined`.
"""
