"""Asks the store for its smallest object once per interval, so that a metric shows whether the
store answers while no segment is copied."""

from __future__ import annotations

from tierlog.errors import RemoteStorageError
from tierlog.metrics import RemoteLogMetrics
from tierlog.remote.segment.layout import CLUSTER_KEY
from tierlog.remote.store.object_store import ObjectStore
from tierlog.tiering.task_pool import Again, Task

__all__ = ["StoreProbe"]


class StoreProbe:
    """Asks for ``cluster.json``. It is also missing when a volume is not mounted."""

    def __init__(self, store: ObjectStore, metrics: RemoteLogMetrics) -> None:
        self._store = store
        self._metrics = metrics

    def __call__(self, task: Task) -> Again:
        self._metrics.ask_store()
        answers = False
        try:
            self._store.head(CLUSTER_KEY)
            answers = True
        except RemoteStorageError:
            # The metric shows the failure. Tasks that need the store report its cause.
            pass
        finally:
            self._metrics.store_answered(answers)
        return Again.LATER
