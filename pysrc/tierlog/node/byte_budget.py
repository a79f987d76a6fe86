"""Limits the bytes that all connections together hold."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["ByteBudget"]


class ByteBudget:
    """A budget of bytes that callers acquire and release, first come, first served. Only one event
    loop may use it.

    A caller that asks for more than the whole budget gets the whole budget.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting_count(self) -> int:
        """The number of callers that wait."""
        return len(self._waiting)

    async def acquire(self, size_bytes: int) -> int:
        """Wait for `size_bytes`. Return the number of acquired bytes, which the caller must
        release."""
        size_bytes = min(size_bytes, self.total_bytes)
        if not self._waiting and self.held_bytes + size_bytes <= self.total_bytes:
            self.held_bytes += size_bytes
            return size_bytes
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (size_bytes, turn)
        self._waiting.append(waiting)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(size_bytes)
            else:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                self._admit()
            raise
        return size_bytes

    def release(self, size_bytes: int) -> None:
        """Give back acquired bytes."""
        self.held_bytes -= size_bytes
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size_bytes, turn = self._waiting[0]
            if turn.cancelled():
                # Its caller was cancelled and has not run since.
                self._waiting.popleft()
                continue
            if self.held_bytes + size_bytes > self.total_bytes:
                return
            self._waiting.popleft()
            self.held_bytes += size_bytes
            turn.set_result(None)
