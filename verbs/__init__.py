"""The command's verbs, one module each: `EXAMPLE`, `add_arguments` and `execute`.

A module is imported when the command line names its verb. `execute` first reads the configuration
and looks for the input folders (`verbs.inputs`), and only then imports what does the work: a
mistake is reported at once, and only the verbs that need TensorFlow import it.

A verb that can go on after Ctrl-C or SIGTERM says in `INTERRUPTED` how; the others leave nothing
half-written. A verb with a verdict has `status`, which makes the exit status of its result.
"""

# In the order of a first use.
VERBS = {
    "demo": "run every stage, from logs to ranked lists, on simulated or on real data",
    "init": "draft a commented configuration from a log",
    "options": "print the reference of the configuration keys",
    "print-config": "show a preset, or a configuration with every default filled in",
    "check": "check a configuration against a log: exit status 1 if a run would fail",
    "examples": "make training examples from raw logs",
    "audit": "prove on a sample that no feature or label uses the future",
    "train": "train the ranker on examples",
    "tune": "search for better settings of the model and its training",
    "evaluate": "measure a checkpoint or an exported version, and write its report",
    "export": "write a SavedModel version that evaluates only the selected experts",
    "score": "score a file of rows, or examples, with a version",
    "compare": "judge a candidate against production: exit status 0 blessed, 1 refused",
    "serve": "serve a model's newest version over gRPC",
    "rank": "rank candidates for one user by calling a server",
    "explain": "say why an item has its scores: features, experts, terms of the combined score",
    "recommend": "find and rank items for one user by calling a server",
    "run": "run a night: examples, training, export, evaluation, decision, publication",
    "runs": "list nightly runs: state, version, durations and metrics",
    "publish": "show the version in production, go back, choose another, or try one beside it",
    "trial": "judge the version on trial by what servers logged: exit status 0 blessed, 1 not",
    "models": "list a server's models, their versions, states and labels",
    "reload": "have a server serve the models of another configuration file",
    "features": "load the features of all users and items into the online store",
    "candidates": "train, evaluate and export the model that finds candidates to rank",
    "completion": "print the completion of this command for bash, zsh or fish",
}
"""Verb -> its line in `multigate --help`."""


def module_of(verb: str) -> str:
    """The module of a verb."""
    return f"multigate.verbs.{verb.replace('-', '_')}"
