"""What a client shows: TLS certificates and a bearer token."""

from pathlib import Path
from typing import Any

import grpc

from multigate.configs.errors import ServingError

TOKEN_HEADER = "authorization"
TOKEN_SCHEME = "Bearer "


def client_credentials(ca: Path | None, certificate: Path | None, key: Path | None) -> Any:
    """TLS credentials of a client.

    Args:
        ca: PEM file of the certificates to trust; None: the system's.
        certificate: PEM file of the client's certificate (mutual TLS).
        key: PEM file of its private key.

    Raises:
        ServingError: a file cannot be read, or only one of certificate and key is given.
    """
    if (certificate is None) != (key is None):
        raise ServingError("certificate and key: expected both or neither")
    files = {"ca": ca, "key": key, "certificate": certificate}
    return grpc.ssl_channel_credentials(
        *(
            None if path is None else read_text(f"{n} {path}", path).encode()
            for n, path in files.items()
        )
    )


def token_metadata(token: str) -> list[tuple[str, str]]:
    """Metadata that carries the token; empty without a token."""
    return [(TOKEN_HEADER, TOKEN_SCHEME + token)] if token else []


def read_text(what: str, path: Path) -> str:
    """A file's text.

    Args:
        what: begins the error's message.
        path: of the file, in UTF-8.

    Raises:
        ServingError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ServingError(f"{what}: cannot be read: {reason}") from None
