"""Who may call: TLS, mutual TLS and bearer tokens."""

import contextlib
import hmac
import logging
import ssl
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format

from multigate.configs.errors import ServingError
from multigate.serving.core.credentials import TOKEN_HEADER, TOKEN_SCHEME, read_text
from multigate.serving.protos import ssl_config_pb2

LOG = logging.getLogger("multigate.serving")

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


def server_tls(path: Path) -> ssl.SSLContext:
    """TLS of HTTP from the same SSLConfig; as with gRPC, new connections see its changes.

    Raises:
        ServingError: the file cannot be read or parsed, or lacks what it needs.
    """
    file = _SSLFile(path)
    newest = file.context(file.read())

    def look(connection: Any, name: str | None, used: ssl.SSLContext) -> None:
        nonlocal newest
        if (changed := file.changed_config()) is not None:
            with contextlib.suppress(ServingError):  # logged: the certificates do not fit
                newest = file.context(changed)
        # A context of its own: what one has trusted once, it trusts for ever.
        connection.context = newest

    newest.sni_callback = look  # called in each handshake, with a name or without
    return newest


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
            config = text_format.Parse(read_text(where, self._path), ssl_config_pb2.SSLConfig())
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
        config = self.changed_config()
        return None if config is None else _certificates(config)

    def changed_config(self) -> Any:
        """The SSLConfig if the file has changed since the last look, else None."""
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            config = self.read()
        except ServingError as error:
            LOG.error("%s; the server keeps its current certificates", error)
            return None
        LOG.info("%s: read again", self._where)
        return config

    def context(self, config: Any) -> ssl.SSLContext:
        """An SSLConfig for Python's ssl.

        Raises:
            ServingError: key and certificate do not fit, or are damaged.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Python's ssl reads a key from files only.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:
                pair.write(f"{config.server_key}\n{config.server_cert}\n")
                pair.flush()
                context.load_cert_chain(pair.name)
            if config.client_verify:
                context.load_verify_locations(cadata=config.custom_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (ssl.SSLError, OSError, ValueError) as error:
            LOG.error("%s: %s; the server keeps its current certificates", self._where, error)
            raise ServingError(
                f"{self._where}: expected a certificate and its key: {error}"
            ) from None
        return context


def _certificates(config: Any) -> Any:
    pair = (config.server_key.encode(), config.server_cert.encode())
    ca = config.custom_ca.encode() if config.client_verify else None
    return grpc.ssl_server_certificate_configuration([pair], ca)


def read_tokens(path: Path) -> list[str]:
    """The tokens of a file, one per line; two let an old and a new token overlap.

    Raises:
        ServingError: the file cannot be read or holds no token.
    """
    tokens = [line.strip() for line in read_text(f"token file {path}", path).splitlines()]
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


def shows_token(metadata: Iterable[tuple[str, str | bytes]], tokens: Iterable[str]) -> bool:
    """Whether a call's metadata carry one of the tokens.

    Every token is compared in full, so that the time taken reveals nothing.  The scheme may be
    written in any case (RFC 9110, section 11.1).
    """
    length = len(TOKEN_SCHEME)
    shown = [
        value[length:].strip()
        for key, value in metadata
        if key == TOKEN_HEADER
        and isinstance(value, str)
        and value[:length].lower() == TOKEN_SCHEME.lower()
    ]
    expected = [token.encode() for token in tokens]
    same = [hmac.compare_digest(one.encode(), token) for one in shown for token in expected]
    return any(same)


def _stamp(path: Path) -> _Stamp:
    """What changes whenever a file is replaced; None where it cannot be seen."""
    try:
        status = path.stat()
    except OSError:  # between the old file and the new one
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
