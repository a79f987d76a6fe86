"""Estimates a billion segments from measurements of a few: the tables of docs/SCALE.md.

``python -m benches.scale`` measures and prints the tables. ``--help`` lists the assumptions that
can be changed. A whole run takes minutes, so ``--measure PART`` measures one part and stores its
figures; ``--kept`` prints the stored figures. The estimates depend only on figures, assumptions and
prices.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from spark_udfs import rebuild_indexes
from spark_udfs.session import session
from tests.remote.s3_server import running_s3_server
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import open_store
from tierlog.tools.audit.plan import plan_audit
from tierlog.tools.listed_segments import ListedSegments
from tierlog.tools.rebuild.index import plan_rebuild, rebuild_task
from tierlog.tools.rebuild.store_plan import LookedSegments, look_at_listed

from .bench_audit import fill
from .bench_rebuild import make_log_dir
from .bench_spark import SCHEDULING, per_task
from .corpus import Corpora
from .memory_child import status_bytes
from .metadata import Store
from .spark_child import MASTER

ROOT = Path(__file__).parents[1]
CACHE_DIR = ROOT / ".cache" / "bench"
MIB, GIB = 1 << 20, 1 << 30
HOUR_S = 3600
KEYS_PER_LIST = 1_000
LATER_MS = 1 << 42
SEGMENTS, FEW, TASKS, ROUNDS = 10_000, 1_000, 400, 3
ENOUGH_S = 30
FLAT_SEGMENTS, FLAT_BYTES = (10, 100, 1_000, 10_000), 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The requests for each segment without its listing: a fixed number, and one more for every
    ``get_piece_bytes`` or ``put_piece_bytes`` of its `.log` object."""

    get: int = 0
    head: int = 0
    put: int = 0
    get_piece_bytes: int | None = None
    put_piece_bytes: int | None = None

    def gets(self, segment_bytes: int) -> int:
        """The number of GET and HEAD requests, which have the same price."""
        return self.get + self.head + _pieces(segment_bytes, self.get_piece_bytes)

    def puts(self, segment_bytes: int) -> int:
        """The number of PUT and POST requests."""
        return self.put + _pieces(segment_bytes, self.put_piece_bytes)


# The requests for segments above a few MiB. tests/tools/test_requests.py counts them.
REQUESTS = {
    # A multipart upload begins and ends with a request. Afterwards both objects are checked.
    "copy": Requests(get=1, head=2, put=3, put_piece_bytes=8 * MIB),
    # An `.indexes` object above 256 KiB takes a second request.
    "audit": Requests(get=2),
    "deep audit": Requests(get=2, get_piece_bytes=4 * MIB),
    "rebuild": Requests(put=1, get_piece_bytes=8 * MIB),
    # A chunk has up to 2 MiB and ends with a batch.
    "table": Requests(get=5, get_piece_bytes=3 * MIB // 2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The measurements per segment: CPU seconds, bytes in the Python process of the driver, and the
    time between two Spark tasks. The time of a plan does not include the listing.

    A look reads an `.indexes` object and checks all of its checksums.
    """

    list_file_s: float
    list_s3_s: float
    plan_audit_s: float
    plan_audit_bytes: float
    plan_rebuild_s: float
    plan_rebuild_bytes: float
    look_s: float
    rebuild_s_per_gib: float
    task_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """The values that are not measured here."""

    segments: int = 1_000_000_000
    segment_bytes: int = GIB
    slots: int = 1_000
    driver_gib: float = 64
    gib_per_s_per_slot: float = 0.1
    request_ms: float = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices in dollars: S3 Standard and a core of an m7g.large in us-east-1, as listed in June
    2026."""

    per_1000_put_or_list: float = 0.005
    per_1000_get: float = 0.0004
    per_slot_hour: float = 0.0408
    per_gb_month: float = 0.021


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The estimate of one kind of work for all segments."""

    work: str
    requests: float
    tasks: float
    slot_hours: float
    hours: float
    dollars: float


def extrapolated(figures: Figures, assumed: Assumed, prices: Prices) -> list[Line]:
    """Return the estimate of each kind of work. The work of the driver comes first; it runs on a
    single machine."""
    n, size_bytes = assumed.segments, assumed.segment_bytes
    total_gib, request_s = n * size_bytes / GIB, assumed.request_ms / 1000

    def line(
        work: str, slot_s: float, *, slots: int = 1, tasks: float = 0, gets: float, puts: float
    ) -> Line:
        hours = slot_s / HOUR_S
        return Line(
            work=work,
            requests=gets + puts,
            tasks=tasks,
            slot_hours=hours,
            hours=hours / slots,
            dollars=gets / 1000 * prices.per_1000_get
            + puts / 1000 * prices.per_1000_put_or_list
            + hours * prices.per_slot_hour,
        )

    def spread(work: str, slot_s: float, segments_per_task: float) -> Line:
        asked, tasks = REQUESTS[work], n / segments_per_task
        return line(
            work,
            slot_s + tasks * figures.task_s,
            slots=assumed.slots,
            tasks=tasks,
            gets=n * asked.gets(size_bytes),
            puts=n * asked.puts(size_bytes),
        )

    lists = 2 * n / KEYS_PER_LIST
    # A slot has four active requests for objects.
    looks_s = n * max(figures.look_s, REQUESTS["audit"].gets(0) * request_s / 4)
    bytes_s = total_gib * (figures.rebuild_s_per_gib + 1 / assumed.gib_per_s_per_slot)
    per_task = max(1.0, GIB / size_bytes)
    return [
        # The next page is requested when the previous one has arrived.
        line("listing", n * figures.list_s3_s + lists * request_s, gets=0, puts=lists),
        line("plan of an audit", n * figures.plan_audit_s, gets=0, puts=0),
        line("plan of a rebuild", n * figures.plan_rebuild_s, gets=0, puts=0),
        spread("audit", looks_s, 256),
        spread("deep audit", looks_s + bytes_s, per_task),
        spread("rebuild", bytes_s, per_task),
    ]


def driver_segments(figures: Figures, assumed: Assumed) -> tuple[float, float]:
    """Return how many segments the memory of a driver can hold: for an audit, and for a rebuild."""
    driver_bytes = assumed.driver_gib * GIB
    return driver_bytes / figures.plan_audit_bytes, driver_bytes / figures.plan_rebuild_bytes


# -- measured here


def measured(part: str, corpora: Corpora, segments: int = SEGMENTS) -> dict[str, float]:
    """Measure one of `PARTS`."""
    if part == "task":
        return {"task_s": per_task(TASKS).measure() / 1000}
    few = min(segments, FEW)
    if part == "bucket":
        return {"list_s3_s": _s3_listing_s(few)}
    with TemporaryDirectory(dir=corpora.directory) as name:
        if part == "rebuild":
            return {"rebuild_s_per_gib": _rebuild_s_per_gib(corpora, Path(name))}
        folders = [Path(name) / str(count) for count in (few, segments)]
        for folder, count in zip(folders, (few, segments), strict=True):
            fill(folder, Store(partitions=count // few, segments=few))
        return _planned([folder.as_uri() for folder in folders], segments, segments - few)


def _planned(urls: Sequence[str], segments: int, more: int) -> dict[str, float]:
    """Measure plans in new processes. The second store has `segments` segments. The first store has
    fewer segments, by `more`."""
    list_s = _listing_s(open_store(urls[-1])) / segments
    figures = {"list_file_s": list_s}
    for operation in ("audit", "rebuild"):
        command = [sys.executable, "-m", "benches.scale", "--plan", operation, *urls]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout)
        figures[f"plan_{operation}_s"] = found["seconds"] / segments - list_s
        figures[f"plan_{operation}_bytes"] = found["bytes"] / max(more, 1)
        figures["look_s"] = found["look_seconds"] / segments
    return figures


def plan(operation: str, *urls: str) -> dict[str, float]:
    """Return the figures of the last plan: its seconds without looks, the seconds of its looks, and
    the growth of the process since the earlier plans."""
    peaks, taken, looks = [status_bytes("VmHWM")], [0.0], [0.0]
    for url in urls:
        looks.append(0.0)
        start = time.process_time()

        def look(listed: Sequence[ListedSegments], url: str = url) -> list[LookedSegments]:
            begin = time.process_time()
            looked = [*look_at_listed(open_store(url), listed)]
            looks[-1] += time.process_time() - begin
            return looked

        if operation == "audit":
            assert plan_audit(open_store(url), now_ms=LATER_MS).parts
        else:
            assert plan_rebuild(url, target=None, dry_run=True, now_ms=LATER_MS, look=look).looked
        taken.append(time.process_time() - start)
        peaks.append(status_bytes("VmHWM"))
    return {
        "seconds": taken[-1] - looks[-1],
        "look_seconds": looks[-1],
        "bytes": peaks[-1] - peaks[-2],
    }


def _listing_s(store: ObjectStore) -> float:
    return median_s(lambda: sum(1 for _ in store.list()))


def _s3_listing_s(segments: int) -> float:
    """Return the seconds per segment for the listing of a bucket on loopback."""
    with running_s3_server() as server:
        store = open_store(f"s3://{server.new_bucket()}/kafka", **server.options())
        for number in range(segments):
            for suffix in ("log", "indexes"):
                store.put_bytes(f"topic/0/{number:020}.{suffix}", b"")
        return _listing_s(store) / segments


def _rebuild_s_per_gib(corpora: Corpora, folder: Path) -> float:
    """Return the seconds that one core takes to scan a GiB from the page cache and write its
    indexes."""
    path, numbers = corpora.path("none-100-16k"), count()
    logs = folder / "logs"
    make_log_dir(logs, path, path.stat().st_size, 1, 4 * path.stat().st_size)

    def run() -> int:
        target = str(folder / f"to-{next(numbers)}")
        made = plan_rebuild(str(logs), target=target, dry_run=False, now_ms=LATER_MS)
        return sum(row.row.size_bytes for task in made.tasks for row in rebuild_task(task))

    size_bytes = run()
    return median_s(run) / (size_bytes / GIB)


# The parts that can be measured alone.
PARTS = ("plan", "bucket", "rebuild", "task", "flat")


def cost_per_gib(corpora: Corpora, many: Sequence[int], segment_bytes: int) -> dict[int, float]:
    """Return the seconds per GiB of a rebuild on Spark, by the number of segments."""
    path, found = corpora.path("none-100-16k"), {}
    with session(MASTER, SCHEDULING) as spark, TemporaryDirectory(dir=path.parent) as name:
        for segments in many:
            place = Path(name) / str(segments)
            size_bytes = min(segment_bytes, path.stat().st_size)
            logs = make_log_dir(place / "logs", path, size_bytes, 1, segments * size_bytes)
            gib, numbers = sum(log.stat().st_size for log in logs) / GIB, count()

            def run(place: Path = place, numbers: count[int] = numbers) -> None:
                target = str(place / f"to-{next(numbers)}")
                assert rebuild_indexes(spark, str(place / "logs"), target).ok

            if segments < max(many):
                run()
            found[segments] = median_s(run, time.perf_counter) / gib
    return found


def median_s(run: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return the median time of a few runs. Runs stop after half a minute. The time is CPU time,
    unless `clock` is another clock."""
    taken: list[float] = []
    while len(taken) < ROUNDS and sum(taken) < ENOUGH_S:
        start = clock()
        run()
        taken.append(clock() - start)
    return statistics.median(taken)


# -- printed


def tables(figures: Figures, assumed: Assumed, prices: Prices) -> Iterator[str]:
    """Yield the lines of the tables in docs/SCALE.md."""
    yield from _rows(
        ("Figure", "Measured"),
        [(one.name, f"{getattr(figures, one.name):.2g}") for one in fields(figures)],
    )
    yield ""
    yield from _rows(
        ("Work", "Requests", "Tasks", "Slot hours", "Hours", "Dollars"),
        [
            tuple(value if isinstance(value, str) else short(value) for value in astuple(line))
            for line in extrapolated(figures, assumed, prices)
        ],
    )
    yield ""
    audit, rebuild = driver_segments(figures, assumed)
    yield f"A driver with {assumed.driver_gib:g} GiB for Python can plan an audit of {short(audit)}"
    yield f"segments at once, or a rebuild of {short(rebuild)} segments."
    gb = assumed.segments * assumed.segment_bytes / 1e9
    yield f"Storing all segments costs {short(gb * prices.per_gb_month)} dollars a month."


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def short(value: float) -> str:
    """Return a value with two digits, which is the precision of these estimates."""
    if value == 0:
        return "-"
    power = 3 * math.floor(math.log10(abs(value)) / 3)
    names = {3: " thousand", 6: " million", 9: " billion", 12: " trillion"}
    scaled = value / 10.0**power if power in names else value
    return f"{float(f'{scaled:.2g}'):g}{names.get(power, '')}"


def _pieces(size_bytes: int, piece_bytes: int | None) -> int:
    return 0 if piece_bytes is None else -(-size_bytes // piece_bytes)


class Kept:
    """The measurements of parts, in a file beside the segments of the benches."""

    def __init__(self, corpora: Corpora) -> None:
        self._corpora = corpora
        self._path = corpora.directory / "scale.json"
        self.found: dict[str, float] = {}
        self.costs: dict[int, float] = {}

    def read(self) -> None:
        """Read the measurements of earlier runs, if any."""
        if self._path.exists():
            kept = json.loads(self._path.read_text())
            self.found, costs = kept["figures"], kept["costs"]
            self.costs = {int(segments): cost for segments, cost in costs.items()}

    def measure(self, part: str) -> None:
        """Measure a part again."""
        if part == "flat":
            self.costs = cost_per_gib(self._corpora, FLAT_SEGMENTS, FLAT_BYTES)
        else:
            self.found |= measured(part, self._corpora)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"figures": self.found, "costs": self.costs}))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.scale", description=__doc__)
    parser.add_argument(
        "--plan", nargs=3, metavar=("OPERATION", "URL", "URL"), help=argparse.SUPPRESS
    )
    parser.add_argument("--measure", choices=PARTS, help="measure only this part, print nothing")
    parser.add_argument(
        "--kept", action="store_true", help="print the figures that --measure stored"
    )
    for group in (Assumed(), Prices()):
        for one in fields(group):
            default = getattr(group, one.name)
            flag = f"--{one.name.replace('_', '-')}"
            parser.add_argument(flag, type=type(default), default=default, help=f"{default}")
    options = parser.parse_args()
    if options.plan:
        print(json.dumps(plan(*options.plan)))
        return
    kept = Kept(Corpora(directory=CACHE_DIR))
    if options.measure or options.kept:
        kept.read()
    for part in (options.measure,) if options.measure else () if options.kept else PARTS:
        kept.measure(part)
    if options.measure:
        return
    # The estimates use the rounded figures, which are also printed.
    figures = Figures(**{name: float(f"{value:.2g}") for name, value in kept.found.items()})
    assumed = Assumed(**{one.name: getattr(options, one.name) for one in fields(Assumed)})
    prices = Prices(**{one.name: getattr(options, one.name) for one in fields(Prices)})
    print("\n".join(tables(figures, assumed, prices)))
    print()
    costs_text = [(f"{segments:,}", f"{1000 * cost:.0f}") for segments, cost in kept.costs.items()]
    print("\n".join(_rows(("Segments of 4 MiB", "ms for each GiB"), costs_text)))


if __name__ == "__main__":
    main()
