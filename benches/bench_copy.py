"""A segment from a broker's directory to a ``file://`` store, against ``cp`` on the same disk."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from .copying import Copying
from .frame import Answer, Bench, Benchmark, Case, Sides, run_side
from .peers.python import bare_crc_pass

GB = 1e9


def items(bench: Bench) -> Sequence[Case]:
    return [copy(bench, "none-100-16k-1g")]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def copy(bench: Bench, shape: str) -> Case:
    """Ours is the whole copy: checksums compared, indexes rebuilt, bytes hashed on their way, both
    objects synced to disk. ``cp`` alone leaves its bytes in the page cache."""

    def prepare(stack: ExitStack) -> Sides:
        segment = bench.corpora.path(shape).absolute()
        folder = Path(stack.enter_context(TemporaryDirectory(dir=segment.parent)))
        copying = Copying.of(segment, folder)
        target = folder / "copied.log"

        def reset() -> None:
            # What is removed is not written back any more while the next side runs.
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
        operation="copy to file:// store",
        shape=shape,
        unit="GB",
        peers={"cp": 0.7, "cp + sync": None},
        prepare=prepare,
        one_thread=False,
    )
