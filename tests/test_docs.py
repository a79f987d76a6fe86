"""What the README shows is run, on the golden logs instead of somebody's cluster."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR, golden_segments

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DISK = DATA_DIR / "clean" / "disk1"
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = FENCED.findall(README)
GUIDES = {
    path.name: "\n".join(code for language, code in blocks if language == "python")
    for path in sorted((ROOT / "docs").glob("*.md"))
    if (blocks := FENCED.findall(path.read_text(encoding="utf-8")))
}
COMMANDS = [
    line
    for language, block in BLOCKS
    if not language
    for line in block.splitlines()
    if line.startswith("tierlog ")
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands in the README, and what stands for it here."""
    store = tmp_path_factory.mktemp("store").as_uri()
    archive = tmp_path_factory.mktemp("archive").as_uri()
    properties = tmp_path_factory.mktemp("config") / "server.properties"
    properties.write_text(f"log.dirs={DISK}\nlog.retention.hours=168\n")
    return {
        "s3://bucket/kafka": store,
        "file:///mnt/archive": archive,
        "/mnt/indexes": str(tmp_path_factory.mktemp("indexes")),
        "/mnt/remote-index": str(tmp_path_factory.mktemp("remote-index")),
        "/var/lib/kafka/data": str(DISK),
        "gs://bucket/archive": tmp_path_factory.mktemp("bucket").as_uri(),
        "hdfs://namenode:8020/kafka": tmp_path_factory.mktemp("hdfs").as_uri(),
        "--config server.properties": f"--config {properties} --once",
        "localhost:9404": "127.0.0.1:0",
        # No broker runs here: the checkpoints decide.
        "--bootstrap localhost:9092": "--once",
        "orders": "codec-none",
        "@-2h:end": "@1700000000000:end",
        "00000000000000000000.log": str(golden_segments("codec-none")[0].path),
    }


def here(text: str, places: dict[str, str]) -> str:
    for shown, real in places.items():
        text = text.replace(shown, real)
    return text


def is_one_of(places: dict[str, str], word: str) -> bool:
    return any(real in word or word in real for real in places.values())


def test_the_readme_names_the_commands_that_make_knows() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert len(COMMANDS) >= 6


def test_every_command_of_the_readme(places: dict[str, str], tmp_path: Path) -> None:
    tool = str(Path(sys.executable).with_name("tierlog"))
    for number, line in enumerate(COMMANDS):
        words = shlex.split(here(line, places))
        # Nothing of this machine is read or written that nobody meant.
        strays = [word for word in words if "/" in word and not is_one_of(places, word)]
        assert strays == [], line
        if words[1] == "tier":
            words += ["--state-dir", str(tmp_path / str(number))]
        done = subprocess.run([tool, *words[1:]], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert done.stdout, line


def test_the_python_of_the_readme(places: dict[str, str], tmp_path: Path) -> None:
    (code,) = [block for language, block in BLOCKS if language == "python"]
    store = places["s3://bucket/kafka"]
    tool = str(Path(sys.executable).with_name("tierlog"))
    state = str(tmp_path / "state")
    command = [tool, "tier", str(DISK), "--to", store, "--once", "--state-dir", state]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [sys.executable, "-c", here(code, places)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("guide", [name for name, code in GUIDES.items() if code])
def test_the_python_of_the_guides(guide: str) -> None:
    """All blocks of a guide, one after the other."""
    command = [sys.executable, "-c", GUIDES[guide]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"{guide}: {done.stderr}"
