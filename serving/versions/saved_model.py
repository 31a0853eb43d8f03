"""A loaded SavedModel: its graph in a session, and a callable per signature."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import MultigateError, ServingError, one_line
from multigate.runtime.errors import ModelRuntimeError
from multigate.runtime.signature import Signature
from multigate.serving.core.layout import Arrays, Layout, ranker_layouts
from multigate.serving.versions.folders import CONTRACT, missing_files

if TYPE_CHECKING:
    from multigate.runtime.session import Session

Layouts = Callable[[Contract], dict[str, Layout]]
"""Gives the signatures that a contract requires, by name."""


class LoadError(ServingError):
    """A version cannot be loaded, or does not fit its contract."""


class ServedSignature(Signature):
    """A signature with what the contract says of it.

    Attributes:
        called: whether it has run since the warm-up.
    """

    def __init__(
        self, name: str, definition: Any, session: "Session", layout: Layout | None
    ) -> None:
        super().__init__(definition, session)
        self.name = name
        self.method = definition.method_name
        self.layout = layout
        self.called = False

    def __call__(self, inputs: Arrays, timeout: float | None = None) -> Arrays:
        """Run the graph; see `Signature`."""
        self.called = True
        return super().__call__(inputs, timeout)


class SavedModel:
    """A loaded SavedModel; closes its session when it is retired and its last call has ended."""

    def __init__(
        self,
        version: int,
        frozen: FrozenContract,
        session: "Session",
        layouts: Layouts,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.version = version
        self.contract = frozen.contract
        self.schema = frozen.schema_fingerprint
        self.definitions = dict(sorted(session.definitions.items()))
        needed = layouts(self.contract)
        self.signatures: dict[str, ServedSignature] = {}
        for name, definition in self.definitions.items():
            if not name.startswith("__"):
                check_stop()
                self.signatures[name] = ServedSignature(name, definition, session, needed.get(name))
        self._session = session
        self._lock = threading.Lock()
        self._calls = 0
        self._closed: Callable[[], None] | None = None
        for name, layout in needed.items():
            self._check(name, layout)

    @classmethod
    def load(
        cls,
        version: int,
        folder: Path,
        parallelism: tuple[int, int] = (1, -1),
        layouts: Layouts = ranker_layouts,
        check_stop: Callable[[], None] = lambda: None,
    ) -> "SavedModel":
        """Load a version folder.

        Args:
            version: number of the version.
            folder: the version's folder.
            parallelism: threads within an operation, and threads across operations; -1 for the
                latter means the calling thread.
            layouts: gives the signatures that the contract requires.
            check_stop: called between steps; raises LoadError to cancel the load.

        Raises:
            LoadError: the folder is incomplete or damaged, or contradicts its contract.
        """
        if missing := missing_files(folder):
            raise LoadError(f"{folder}: incomplete: expected {', '.join(missing)}")
        try:
            frozen = FrozenContract.read(folder / CONTRACT)
        except (MultigateError, OSError) as error:
            raise LoadError(str(error)) from None
        session = None
        try:
            from multigate.runtime.session import Session  # with TensorFlow's library

            session = Session(folder, parallelism)
            check_stop()
            return cls(version, frozen, session, layouts, check_stop)
        except ServingError as error:
            if session is not None:
                session.close()
            reason = one_line(error)
            if isinstance(error, ModelRuntimeError):
                reason = f"cannot be loaded: {reason}; copy or export the version again"
            raise LoadError(f"{folder}: {reason}") from error
        except Exception as error:  # such as a signature that is no message
            if session is not None:
                session.close()
            reason = one_line(error)
            raise LoadError(f"{folder}: cannot be loaded: {reason}") from error

    def _check(self, name: str, layout: Layout) -> None:
        """Refuse a signature that differs from the contract's."""
        if name not in self.signatures:
            raise LoadError(f"signature {name!r}: absent; export the version again")
        signature = self.signatures[name]
        expected = {key: value.dtype for key, value in layout.inputs.items()}
        received = {key: spec.dtype for key, spec in signature.inputs.items()}
        if expected != received:
            differing = sorted(
                key
                for key in expected.keys() | received.keys()
                if expected.get(key) != received.get(key)
            )
            details = ", ".join(
                f"{key} (expected {expected.get(key, 'no such input')}, "
                f"received {received.get(key, 'none')})"
                for key in differing
            )
            raise LoadError(f"signature {name!r}: inputs differ from the contract's: {details}")
        if layout.outputs != signature.outputs.keys():
            raise LoadError(
                f"signature {name!r}: expected outputs {', '.join(sorted(layout.outputs))}, "
                f"received {', '.join(signature.outputs)}"
            )

    def acquire(self) -> bool:
        """Begin a call, which keeps the session open; False once the version is retired."""
        with self._lock:
            if self._closed is not None:
                return False
            self._calls += 1
            return True

    def release(self) -> None:
        """End a call; the last call of a retired version closes the session.

        Closing takes long, so it runs in a thread of its own and no other call waits for it.
        """
        with self._lock:
            self._calls -= 1
            close = self._calls == 0 and self._closed is not None
        if close:
            # Not a daemon: a process that exits must not stop it halfway.
            threading.Thread(target=self._close, name="unload", daemon=False).start()

    def retire(self, closed: Callable[[], None] = lambda: None) -> None:
        """Take no more calls; close the session after the calls in flight, then call `closed`."""
        with self._lock:
            self._closed = closed
            idle = self._calls == 0
        if idle:
            self._close()

    def _close(self) -> None:
        self._session.close()
        assert self._closed is not None
        self._closed()
