"""How many requests a segment costs, counted between the client and a real S3 server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benches.copying import Copying
from benches.corpus import Corpora
from benches.scale import REQUESTS
from spark_udfs.schemas import arrow_schema, schema_of
from tests.remote.fault_proxy import Call, FaultProxy
from tests.remote.s3_server import running_s3_server
from tierlog.clock import ManualClock
from tierlog.reader.read_ahead import ReadAheadSettings
from tierlog.remote.urls import open_store
from tierlog.sidecar import Sidecar
from tierlog.tables.catalog import open_catalog
from tierlog.tables.options import parse_options
from tierlog.tables.plan import plan_read
from tierlog.tables.read import read_task
from tierlog.tools.audit.rows import AuditRules
from tierlog.tools.audit.store import audit_store
from tierlog.tools.rebuild.index import rebuild_index

MIB = 1 << 20
LATER_MS = 1 << 50
PUTS = (Call.PUT_OBJECT, Call.CREATE_UPLOAD, Call.PUT_PART, Call.COMPLETE_UPLOAD)
GETS = (Call.GET_OBJECT, Call.HEAD_OBJECT)
# Of a whole run: the marker of the cluster, looked for, read or made; a last piece that ends a
# little later than the segment.
MORE = 4
# A copy lists what the store holds of the partition, the markers of topic ids, and the partition
# for the hourly check; the claims of the partition before and after its own claim, and twice for
# each segment.
LISTS = {"copy": 3 + 2 + 2}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, FaultProxy]]:
    """The URL of an empty bucket, and what sees every request to it."""
    with running_s3_server() as server, FaultProxy(server) as proxy:
        endpoint = str(proxy.options()["endpoint"])
        for name, value in (server.environment() | {"AWS_ENDPOINT_URL": endpoint}).items():
            monkeypatch.setenv(name, value)
        yield f"s3://{server.new_bucket()}/kafka", proxy


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A log directory with a rolled segment of 64 MiB."""
    made = Copying.of(Corpora(directory=tmp_path).path("none-100-16k-64m"), tmp_path)
    (segment,) = made.log.rolled_segments
    checkpoint = tmp_path / "disk" / "replication-offset-checkpoint"
    checkpoint.write_text(f"0\n1\nbench 0 {segment.next_base_offset}\n")
    return tmp_path / "disk"


def test_requests_of_a_segment(watched: tuple[str, FaultProxy], disk: Path, tmp_path: Path) -> None:
    """As many as are said, which the page about very many segments is made of."""
    url, proxy = watched
    size_bytes = max(path.stat().st_size for path in disk.rglob("*.log"))

    def check(work: str, run: Callable[[], object]) -> None:
        before = Counter(proxy.passed)
        assert run(), work
        found = Counter(proxy.passed) - before
        asked = REQUESTS[work]
        for wanted, calls in ((asked.gets(size_bytes), GETS), (asked.puts(size_bytes), PUTS)):
            counted = sum(found[call] for call in calls)
            # Fewer and larger ones where a piece came before it was needed, or readers had to wait.
            least = min(wanted // 2, size_bytes // ReadAheadSettings().max_chunk_bytes)
            assert least <= counted <= wanted + MORE, (work, found)
        assert found[Call.LIST_OBJECTS] <= LISTS.get(work, 1)

    def tier() -> bool:
        clock = ManualClock()
        with Sidecar([str(disk)], url, state_dir=str(tmp_path / "state"), clock=clock) as sidecar:
            return sidecar.run_once().ok

    def audited(*, deep: bool) -> bool:
        audit = audit_store(url, AuditRules(now_ms=LATER_MS, deep=deep))
        return len(audit.segments) == 1 and not audit.findings

    def read() -> int:
        options = parse_options({"path": url, "subscribe": "bench"})
        schema = arrow_schema(schema_of(options))
        tasks = plan_read(options, open_catalog(options))
        batches = [one for task in tasks for one in read_task(task, schema, options, None)]
        return sum(batch.num_rows for batch in batches)

    check("copy", tier)
    check("audit", lambda: audited(deep=False))
    check("deep audit", lambda: audited(deep=True))
    check("table", read)
    store = open_store(url)
    for info in list(store.list()):
        if info.key.endswith(".indexes"):
            store.delete(info.key)
    check("rebuild", lambda: rebuild_index(url, now_ms=LATER_MS).summary.written == 1)
