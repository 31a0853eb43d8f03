"""Who may call: TLS, mutual TLS and bearer tokens."""

import hmac
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format

from multigate.configs.errors import ServingError
from multigate.serving.protos import ssl_config_pb2

LOG = logging.getLogger("multigate.serving")

_HEADER, _SCHEME = "authorization", "Bearer "
_LOOK_EVERY = 1.0
"""Seconds between looks at a file of tokens."""
_Stamp = tuple[int, ...] | None


def server_credentials(path: Path) -> Any:
    """TLS credentials from an SSLConfig in protobuf's text form.

    Certificates can be replaced while the server runs: the file is read again when it has changed,
    and new connections use it.  Whether clients must show a certificate is fixed at the start.

    Raises:
        ServingError: the file cannot be read or parsed, or lacks what it needs.
    """
    file = _SSLFile(path)
    config = file.read()
    return grpc.dynamic_ssl_server_credentials(
        _certificates(config), file.changed, config.client_verify
    )


def read_ssl_config(path: Path) -> Any:
    """An SSLConfig in protobuf's text form.

    Raises:
        ServingError: the file cannot be read or parsed, or lacks what it needs.
    """
    return _SSLFile(path).read()


class _SSLFile:
    """The server's SSLConfig file, read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._where = f"--ssl_config_file {path}"
        self._seen = _stamp(path)

    def read(self) -> Any:
        """The SSLConfig.

        Raises:
            ServingError: the file cannot be read or parsed, or lacks what it needs.
        """
        where = self._where
        try:
            config = text_format.Parse(_read(where, self._path), ssl_config_pb2.SSLConfig())
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
                f"{where}: client_verify: needs custom_ca, the certificates to check clients "
                "against"
            )
        return config

    def changed(self) -> Any:
        """The certificates if the file has changed since the last look, else None; for gRPC."""
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            certificates = _certificates(self.read())
        except ServingError as error:
            LOG.error("%s; the server keeps its current certificates", error)
            return None
        LOG.info("%s: read again", self._where)
        return certificates


def _certificates(config: Any) -> Any:
    pair = (config.server_key.encode(), config.server_cert.encode())
    ca = config.custom_ca.encode() if config.client_verify else None
    return grpc.ssl_server_certificate_configuration([pair], ca)


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
            None if path is None else _read(f"{n} {path}", path).encode()
            for n, path in files.items()
        )
    )


def read_tokens(path: Path) -> list[str]:
    """The tokens of a file, one per line; two let an old and a new token overlap.

    Raises:
        ServingError: the file cannot be read or holds no token.
    """
    tokens = [line.strip() for line in _read(f"token file {path}", path).splitlines()]
    tokens = [token for token in tokens if token]
    if not tokens or not all(token.isascii() and token.isprintable() for token in tokens):
        raise ServingError(f"token file {path}: expected printable ASCII tokens, one a line")
    return tokens


class TokenFile:
    """The bearer tokens of a file, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ServingError: the file cannot be read or holds no token.
        """
        self._path = path
        self._seen = _stamp(path)
        self._tokens = read_tokens(path)
        self._looked = time.monotonic()

    def accepts(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Whether a call's metadata carry one of the tokens."""
        if time.monotonic() - self._looked >= _LOOK_EVERY:
            self._look()
        return shows_token(metadata, self._tokens)

    def _look(self) -> None:
        """Read the file again if it has changed; a damaged one changes nothing."""
        self._looked = time.monotonic()
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._tokens = read_tokens(self._path)
        except ServingError as error:
            LOG.error("%s; the server keeps its current tokens", error)
        else:
            LOG.info("token file %s: read again", self._path)


def token_metadata(token: str) -> list[tuple[str, str]]:
    """Metadata that carries the token; empty without a token."""
    return [(_HEADER, _SCHEME + token)] if token else []


def shows_token(metadata: Iterable[tuple[str, str | bytes]], tokens: Iterable[str]) -> bool:
    """Whether a call's metadata carry one of the tokens.

    Every token is compared in full, so that the time taken reveals nothing.
    """
    shown = [value for key, value in metadata if key == _HEADER and isinstance(value, str)]
    expected = [(_SCHEME + token).encode() for token in tokens]
    same = [hmac.compare_digest(one.encode(), token) for one in shown for token in expected]
    return any(same)


def _stamp(path: Path) -> _Stamp:
    """What changes whenever a file is replaced; None where it cannot be seen."""
    try:
        status = path.stat()
    except OSError:  # between the old file and the new one
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _read(what: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ServingError(f"{what}: cannot be read: {reason}") from None
