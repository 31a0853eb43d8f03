"""The command's verbs, one module each: `HELP`, `EXAMPLE`, `add_arguments`, and `run`.

The modules import their packages inside `run`, so that `--help` answers at once.
"""

# In the order of `multigate --help`: the order of a first use.
VERBS = (
    "demo",
    "examples",
    "audit",
    "train",
    "evaluate",
    "export",
    "compare",
    "serve",
    "rank",
    "run",
    "runs",
    "publish",
    "features",
    "candidates",
)
