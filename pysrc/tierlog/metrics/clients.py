"""Bytes by client id. Clients choose their ids, so the number of counted clients is limited. Not
thread-safe; the recorder holds its lock."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["ClientBytes"]

# A client without reads for this time loses its slot to another client.
IDLE_MS = 900_000
_MAX_CHARACTERS = 255


class ClientBytes:
    """Bytes that each of at most ``max_clients`` clients has read. With 0, no client is counted.

    If a client has not read for `IDLE_MS`, another client may take its slot. A client that gets a
    slot again starts at 0. Clients without a slot or without a name are not counted.
    """

    __slots__ = ("_clients", "max_clients")

    def __init__(self, max_clients: int = 0) -> None:
        self.max_clients = max_clients
        # Bytes and time of the last read; the client that read last is last.
        self._clients: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def resize(self, max_clients: int) -> None:
        """Set the number of slots. The clients that were idle longest lose their slots."""
        self.max_clients = max_clients
        while len(self._clients) > max_clients:
            self._clients.popitem(last=False)

    def add(self, client_id: str, size_bytes: int, now_ms: int) -> None:
        """Count bytes that the client has read."""
        # A name that is not UTF-8 would break every scrape.
        name = client_id[:_MAX_CHARACTERS].encode("utf-8", "replace").decode()
        known = self._clients.get(name)
        if known is not None:
            self._clients[name] = (known[0] + size_bytes, now_ms)
            self._clients.move_to_end(name)
        elif name and self._has_place(now_ms):
            self._clients[name] = (size_bytes, now_ms)

    def counts(self) -> dict[str, int]:
        """Bytes by client id."""
        return {name: size_bytes for name, (size_bytes, _) in self._clients.items()}

    def _has_place(self, now_ms: int) -> bool:
        if len(self._clients) < self.max_clients:
            return True
        idlest = next(iter(self._clients), None)
        if idlest is None or now_ms - self._clients[idlest][1] < IDLE_MS:
            return False
        del self._clients[idlest]
        return True
