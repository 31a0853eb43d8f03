"""Who may call: TLS, mutual TLS and bearer tokens."""

import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format

from configs.errors import ServingError
from serving.protos import ssl_config_pb2

_HEADER, _SCHEME = "authorization", "Bearer "


def server_credentials(path: Path) -> Any:
    """TLS credentials from an SSLConfig in protobuf's text form.

    Raises:
        ServingError: the file cannot be read or parsed, or lacks what it needs.
    """
    where = f"--ssl_config_file {path}"
    try:
        config = text_format.Parse(_read(where, path), ssl_config_pb2.SSLConfig())
    except text_format.ParseError as error:
        raise ServingError(f"{where}: {error}") from None
    for name in ("server_key", "server_cert"):
        if "-----BEGIN " not in getattr(config, name):
            raise ServingError(
                f"{where}: {name}: expected the PEM text itself, received "
                f"{'another text' if getattr(config, name) else 'none'}"
            )
    if config.client_verify and not config.custom_ca:
        raise ServingError(
            f"{where}: client_verify: needs custom_ca, the certificates to check clients against"
        )
    pair = (config.server_key.encode(), config.server_cert.encode())
    ca = config.custom_ca.encode() if config.client_verify else None
    return grpc.ssl_server_credentials([pair], ca, config.client_verify)


def client_credentials(ca: Path | None, certificate: Path | None, key: Path | None) -> Any:
    """TLS credentials of a client.

    Args:
        ca: PEM file of the certificates to trust; the system's where absent.
        certificate: PEM file that shows who calls (mutual TLS).
        key: PEM file of its private key.

    Raises:
        ServingError: a file cannot be read, or only one of certificate and key is given.
    """
    if (certificate is None) != (key is None):
        raise ServingError("certificate and key: expected both or neither")
    files = {"ca": ca, "key": key, "certificate": certificate}
    return grpc.ssl_channel_credentials(
        *(
            None if path is None else _read(f"{n} {path}", path).encode()
            for n, path in files.items()
        )
    )


def read_tokens(path: Path) -> list[str]:
    """The tokens of a file, one a line, so that an old and a new one can overlap.

    Raises:
        ServingError: the file cannot be read or holds no token.
    """
    tokens = [line.strip() for line in _read(f"token file {path}", path).splitlines()]
    tokens = [token for token in tokens if token]
    if not tokens or not all(token.isascii() and token.isprintable() for token in tokens):
        raise ServingError(f"token file {path}: expected printable ASCII tokens, one a line")
    return tokens


def token_metadata(token: str) -> list[tuple[str, str]]:
    """Metadata of a call that shows the token; none without a token."""
    return [(_HEADER, _SCHEME + token)] if token else []


def shows_token(metadata: Iterable[tuple[str, str | bytes]], tokens: Iterable[str]) -> bool:
    """Whether a call's metadata show one of the tokens.

    Every token is compared in full, so that the time taken tells nothing about them.
    """
    shown = [value for key, value in metadata if key == _HEADER and isinstance(value, str)]
    expected = [(_SCHEME + token).encode() for token in tokens]
    same = [hmac.compare_digest(one.encode(), token) for one in shown for token in expected]
    return any(same)


def _read(what: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ServingError(f"{what}: cannot be read: {reason}") from None
