"""Every command and example of the README runs, on the golden logs; every link leads somewhere."""

from __future__ import annotations

import os
import pkgutil
import re
import runpy
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.kafka_tools.golden import DATA_DIR, golden_segments
from tests.pages import README, ROOT
from tierlog.cli.command import tierlog as tierlog_command
from tierlog.config.kinds import settings
from tierlog.config.load import LEFT_TO_KAFKA, SECTIONS
from tierlog.config.topic import TOPIC_SETTINGS

DISK = DATA_DIR / "clean" / "disk1"
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = FENCED.findall(README)
GUIDES = {
    path.name: "\n".join(code for language, code in blocks if language == "python")
    for path in sorted((ROOT / "docs").glob("*.md"))
    if (blocks := FENCED.findall(path.read_text(encoding="utf-8")))
}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.py"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
ROOMS = "cli|fetch|log|metrics|node|quota|reader|remote|sidecar|tables|testing|tiering|tools"
DOTTED = re.compile(rf"`((?:tierlog|spark_udfs|{ROOMS})(?:\.[a-zA-Z_]\w*)+)(?:\(|`)")
INLINE_COMMAND = re.compile(r"`tierlog ([a-z][^`]*)`")
LINE_COMMAND = re.compile(r"^tierlog ([a-z].*)$", re.MULTILINE)
OF_THE_CONFIGURATION = [one for section in SECTIONS.values() for _, one in settings(section)]
SETTINGS = {
    *LEFT_TO_KAFKA,
    *(name for one in OF_THE_CONFIGURATION for name in (one.name, *one.aliases, *one.fallbacks)),
    *TOPIC_SETTINGS,
    *(name for one in TOPIC_SETTINGS.values() for name, _ in one.broker_names),
    # Groups of entry points.
    "tierlog.metadata_managers",
    "tierlog.object_stores",
    "tierlog.storage_managers",
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
    """Map each name that the README shows to its stand-in here."""
    store = tmp_path_factory.mktemp("store").as_uri()
    archive = tmp_path_factory.mktemp("archive").as_uri()
    properties = tmp_path_factory.mktemp("config") / "server.properties"
    properties.write_text(f"log.dirs={DISK}\nlog.retention.hours=168\n")
    return {
        "s3://bucket/kafka": store,
        "~/kafka": str(tmp_path_factory.mktemp("node") / "data"),
        "file:///mnt/cold": tmp_path_factory.mktemp("cold").as_uri(),
        "file:///mnt/archive": archive,
        "/var/lib/kafka/data": str(DISK),
        "gs://bucket/archive": tmp_path_factory.mktemp("bucket").as_uri(),
        "--config server.properties": f"--config {properties} --once",
        "localhost:9404": "127.0.0.1:0",
        "127.0.0.1:9092": "127.0.0.1:0",
        # Without a broker the checkpoints decide.
        "--bootstrap localhost:9092": "--once",
        "orders": "codec-none",
        "@-2h:end": "@1700000000000:end",
        "00000000000000000000.log": str(golden_segments("codec-none")[0].path),
    }


def with_stand_ins(text: str, places: dict[str, str]) -> str:
    for shown, real in places.items():
        text = text.replace(shown, real)
    return text


def is_known(places: dict[str, str], word: str) -> bool:
    return any(real in word or word in real for real in places.values())


def test_make_has_the_targets_of_the_readme() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert len(COMMANDS) >= 10


@pytest.mark.parametrize(
    ("page", "most_lines"), [("README.md", 150), ("docs/ARCHITECTURE.md", 120)]
)
def test_a_first_page_stays_short(page: str, most_lines: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= most_lines


@pytest.mark.parametrize("script", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_what_its_script_makes(script: Path) -> None:
    made = runpy.run_path(str(script))["picture"]()
    assert script.with_suffix(".svg").read_text(encoding="utf-8") == made


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    for path, name in NAMED_TEST.findall(page.read_text(encoding="utf-8")):
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *def {name}\(", source, re.MULTILINE) or not name, name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    """`tierlog.reader.positions`, or `reader.positions` for short; settings look alike."""
    for name in DOTTED.findall(page.read_text(encoding="utf-8")):
        if name in SETTINGS or name.endswith((".json", ".md", ".sqlite")):
            continue
        full = name if name.startswith(("tierlog.", "spark_udfs.")) else f"tierlog.{name}"
        assert pkgutil.resolve_name(full) is not None, name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_options_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for command in [*INLINE_COMMAND.findall(text), *LINE_COMMAND.findall(text)]:
        verb, *words = command.split("#")[0].split()
        found = tierlog_command.commands.get(verb)
        if isinstance(found, click.Group):
            found = found.commands[words.pop(0)]
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        options = found or tierlog_command
        assert given <= {name for option in options.params for name in option.opts}, command


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_commands_of_the_readme_run(places: dict[str, str], tmp_path: Path) -> None:
    tool = str(Path(sys.executable).with_name("tierlog"))
    for number, line in enumerate(COMMANDS):
        words = shlex.split(with_stand_ins(line, places))
        # Every path of the command has a stand-in: none of this machine is read or written.
        unknown_paths = [word for word in words if "/" in word and not is_known(places, word)]
        assert unknown_paths == [], line
        if words[1] == "tier":
            words += ["--state-dir", str(tmp_path / str(number))]
        if words[1] == "serve":
            assert "bootstrap.servers=" in first_screen([tool, *words[1:]], tmp_path), line
            continue
        done = subprocess.run(
            [tool, *words[1:]],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"TMPDIR": str(tmp_path)},
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        # A repair prints a row only for what it mends.
        assert done.stdout or "--repair" in words, line


def first_screen(command: list[str], cwd: Path) -> str:
    """Start a server, end it after its first screen, and return that."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or "Ctrl-C" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    return "".join(lines)


def test_python_of_the_readme_runs(places: dict[str, str], tmp_path: Path) -> None:
    (code,) = [block for language, block in BLOCKS if language == "python"]
    store = places["s3://bucket/kafka"]
    tool = str(Path(sys.executable).with_name("tierlog"))
    state = str(tmp_path / "state")
    command = [tool, "tier", str(DISK), "--to", store, "--once", "--state-dir", state]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [sys.executable, "-c", with_stand_ins(code, places)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("guide", [name for name, code in GUIDES.items() if code])
def test_python_of_the_guides_runs(guide: str) -> None:
    """Run all blocks of a guide in one process, in their order."""
    command = [sys.executable, "-c", GUIDES[guide]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"{guide}: {done.stderr}"
