"""multigate: from user logs to a multi-task ranking service.

This is the package that `pip install` adds to an environment, and the only name it adds.  The
folders beside this file are links to the repository's folders: `multigate.model` is `model/`.
"""

__version__ = "0.1.0"
"""As in pyproject.toml; stated here as well for places that have no installed metadata: a checkout
that is not installed, and the images."""
