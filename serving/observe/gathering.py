"""Work that calls leave to a background thread, which takes several pieces of it together."""

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class GatherQueue(Generic[T]):
    """A bounded queue between calls, which never wait, and one thread.

    Each piece has a weight, such as its rows.
    """

    def __init__(self, most: int, together: int, seconds: float) -> None:
        """Make an empty one.

        Args:
            most: weight that may wait.
            together: weight that is taken at once, and for which nobody waits longer.
            seconds: for which the first piece waits for others at most.
        """
        self._most = most
        self._together = together
        self._seconds = seconds
        self._changed = threading.Condition()
        self._pieces: deque[tuple[T, int]] = deque()
        self._weight = 0
        self.closed = False
        """Whether it takes no more pieces."""

    @property
    def ended(self) -> bool:
        """Whether it is closed, and all is taken."""
        return self.closed and not self._pieces

    def add(self, piece: T, weight: int) -> bool:
        """Queue a piece; False: there is no room, or no thread any more."""
        with self._changed:
            if self.closed or self._weight + weight > self._most:
                return False
            self._pieces.append((piece, weight))
            self._weight += weight
            if len(self._pieces) == 1 or self._enough():
                self._changed.notify()
        return True

    def take(self, idle: float | None = None) -> list[T]:
        """Wait for pieces, and take the oldest of them: those of the weight, but at least one.

        Args:
            idle: seconds to wait for the first one; None: without limit.

        Returns:
            None of them after so many seconds, or once the queue has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self.closed, idle)
            if self._pieces:
                self._changed.wait_for(self._enough, self._seconds)
            taken: list[T] = []
            weight = 0
            while self._pieces and (not taken or weight + self._pieces[0][1] <= self._together):
                piece, its = self._pieces.popleft()
                taken.append(piece)
                weight += its
            self._weight -= weight
            return taken

    def close(self) -> None:
        """Take no more pieces; those that wait are taken without delay."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def clear(self) -> int:
        """Drop what waits; returns its weight."""
        with self._changed:
            dropped, self._weight = self._weight, 0
            self._pieces.clear()
            return dropped

    def _enough(self) -> bool:
        """Whether to wait for no more pieces; of half of what may wait, too."""
        return self.closed or self._weight >= min(self._together, self._most / 2)
