"""A Rank request in a JSON file, as `multigate explain` takes it."""

import json
from pathlib import Path
from typing import Any

from multigate.configs.errors import ServingError
from multigate.configs.sections.nearest import did_you_mean

_KEYS = ("user", "context", "items", "columns", "weights")


def read_request(path: Path) -> dict[str, Any]:
    """A request's JSON object: user, context, items, columns, weights, all but `user` optional.

    Raises:
        ServingError: it cannot be read, or is no such object.
    """
    try:
        request = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not valid JSON: {error}"
        raise ServingError(f"--request {path}: {reason}; expected a JSON file") from None
    if not isinstance(request, dict) or "user" not in request:
        raise ServingError(
            f"--request {path}: expected a JSON object with user, and if wanted "
            f"{', '.join(_KEYS[1:])}, received {'no user' if isinstance(request, dict) else 'none'}"
        )
    for key, value in request.items():
        if key not in _KEYS:
            raise ServingError(
                f"--request {path}: unknown key {key!r}; {did_you_mean(key, _KEYS)}expected "
                f"some of {', '.join(_KEYS)}"
            )
        kind = list if key == "items" else dict
        if not isinstance(value, kind):
            raise ServingError(
                f"--request {path}: {key}: expected a JSON "
                f"{'array' if kind is list else 'object'}, received {json.dumps(value):.80}"
            )
    return request
