"""Copies segments from a broker's directory to a store. The peers are ``cp`` on the same disk, and
a plain client of the same S3 server."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import obstore
from obstore.store import from_url

from tests.remote.s3_server import S3_SERVERS, running_s3_server
from tierlog._core import crc32c
from tierlog.remote.segment.layout import LOG_SUFFIX
from tierlog.remote.urls import open_store

from .copying import Copying
from .frame import Answer, Bench, Benchmark, Case, Sides, run_side
from .peers.python import bare_crc_pass

GB = 1e9
MB = 1e6
PARTITIONS = 4
# The store also sends large objects in parts of this size.
PART_BYTES = 8 << 20
PARTS_IN_FLIGHT = 4
# A file system in memory.
MEMORY = Path("/dev/shm")


def items(bench: Bench) -> Sequence[Case]:
    cases = [
        copy(bench, "none-100-16k-1g"),
        copy(bench, "none-1024-1m-1g"),
        copy_to_s3(bench, "none-100-16k-64m"),
    ]
    if MEMORY.is_dir():
        cases.append(copy(bench, "none-100-16k", memory=MEMORY))
    return cases


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def copy(bench: Bench, shape: str, *, memory: Path | None = None) -> Case:
    """Compare the whole copy by tierlog with ``cp``. tierlog checks checksums, rebuilds indexes,
    hashes the bytes and syncs both objects to disk. ``cp`` alone leaves its bytes in the page
    cache, and the kernel writes them to disk later. With `memory`, both write to a file system in
    memory."""

    def prepare(stack: ExitStack) -> Sides:
        segment = bench.corpora.path(shape).absolute()
        folder = Path(stack.enter_context(TemporaryDirectory(dir=segment.parent)))
        place = Path(stack.enter_context(TemporaryDirectory(dir=memory))) if memory else folder
        copying = Copying.of(segment, folder, place / "store")
        target = place / "copied.log"

        def reset() -> None:
            # The kernel does not write a removed file to disk while the next side runs.
            copying.forget()
            target.unlink(missing_ok=True)

        def cp(*then: str) -> Callable[[], Answer]:
            subprocess.run(["cp", segment, target], check=True)
            if then:
                subprocess.run([*then, target], check=True)
            return lambda: bare_crc_pass(target)

        return Sides(
            amount=segment.stat().st_size / GB,
            ours=copying.run,
            answer=bare_crc_pass,
            reset=reset,
            peers={"cp": cp, "cp + sync": lambda: cp("sync")},
        )

    return Case(
        operation=f"copy to file:// store{' in memory' if memory else ''}",
        shape=shape,
        unit="GB",
        peers={"cp": 0.7, "cp + sync": None},
        prepare=prepare,
        one_thread=False,
    )


def copy_to_s3(bench: Bench, shape: str) -> Case:
    """Copy four partitions in threads. The peer sends the same files with the same client library,
    in the same parts and with the same signatures. The server runs in another process on this
    machine; a real S3 server is used if one is installed."""

    def prepare(stack: ExitStack) -> Sides:
        segment = bench.corpora.path(shape).absolute()
        folder = Path(stack.enter_context(TemporaryDirectory(dir=segment.parent)))
        copying = Copying.of(segment, folder)
        server = stack.enter_context(running_s3_server(S3_SERVERS[-1]))
        url = f"s3://{server.new_bucket()}"
        store, bare = open_store(url, **server.options()), from_url(url, **server.options())
        pool = stack.enter_context(ThreadPoolExecutor(PARTITIONS))

        def stored() -> Answer:
            logs = [info.key for info in store.list() if info.key.endswith(LOG_SUFFIX)]
            found = [bytes(store.get_range(key, 0, 1 << 40)) for key in logs]
            return {"bytes": sum(map(len, found)), "crc32c": sorted(map(crc32c, found))}

        def reset() -> None:
            for info in list(store.list()):
                store.delete(info.key)

        def ours() -> Callable[[], Answer]:
            list(pool.map(copying.copy_to, [store] * PARTITIONS))
            return stored

        def put(number: int) -> None:
            obstore.put(
                bare,
                f"bare-{number}{LOG_SUFFIX}",
                segment,
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_IN_FLIGHT,
            )

        def alone() -> Callable[[], Answer]:
            list(pool.map(put, range(PARTITIONS)))
            return stored

        return Sides(
            amount=PARTITIONS * segment.stat().st_size / MB,
            ours=ours,
            reset=reset,
            peers={"obstore alone": alone},
        )

    return Case(
        operation="copy to S3 on loopback, four partitions",
        shape=shape,
        unit="MB",
        peers={"obstore alone": 0.8},
        prepare=prepare,
        one_thread=False,
    )
