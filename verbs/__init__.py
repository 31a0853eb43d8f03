"""The command's verbs, one module each: `HELP`, `EXAMPLE`, `add_arguments`, and `run`.

The modules import their packages inside `run`, so that `--help` answers at once.
"""

# In the order of `multigate --help`: the order of a first use.
VERBS = (
    "demo",
    "examples",
    "audit",
    "train",
    "tune",
    "evaluate",
    "export",
    "compare",
    "serve",
    "rank",
    "recommend",
    "run",
    "runs",
    "publish",
    "features",
    "candidates",
)
