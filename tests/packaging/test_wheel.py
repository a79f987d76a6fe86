"""The wheel, built every way a user may, installed into an empty virtual environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CALLER = Path(__file__).with_name("native_caller")
GUIDE = ROOT / "docs" / "HOT_PATH.md"
IMPORT_BOTH = (
    "import tierlog._core as core, tierlog._hot, spark_udfs, tierlog;"
    "assert core.crc32c(b'123456789') == 0xE3069283;"
    "print(tierlog.__file__)"
)

pytestmark = pytest.mark.packaging


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, as a fresh clone has them."""
    target = tmp_path_factory.mktemp("clone") / "tierlog"
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, listing.split("\0")):
        if name.startswith("tests/data/") or not (ROOT / name).is_file():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    return target


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Builds share one cargo target folder, so that only the first compiles the dependencies, and
    take no pains: what is optimised is the same code."""
    return {
        **os.environ,
        "CARGO_TARGET_DIR": str(ROOT / "target" / "packaging"),
        "CARGO_PROFILE_RELEASE_LTO": "off",
        "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
        "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
    }


def new_venv(folder: Path) -> Path:
    venv.create(folder)
    return folder / "bin" / "python"


def install(python: Path, *what: str | Path, environment: dict[str, str]) -> None:
    """By the pip of this environment, which is quicker than to install another one first."""
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-q", *what]
    run(command, environment, python.parent)


def run(command: list[str | Path], environment: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(
    sources: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """``pip wheel .``"""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", target, sources]
    run([str(part) for part in command], environment, target)
    (built,) = target.glob("tierlog-*.whl")
    return built


def test_wheel_holds_both_native_modules_and_no_sources(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    python = ("spark_udfs/__init__.py", "pyspark_tierlog/__init__.py")
    for wanted in ("tierlog/_core.", "tierlog/_hot.", "tierlog/_hot.pxd", *python):
        assert any(name.startswith(wanted) for name in names), wanted
    assert "tierlog/py.typed" in names
    assert not [name for name in names if name.endswith((".pyx", ".c", ".rs"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_names_no_path_of_the_machine_it_was_built_on(wheel: Path, sources: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            for place in (sources, ROOT, Path.home()):
                assert str(place).encode() not in data, (name, place)


def test_wheel_installs_into_an_empty_environment(
    wheel: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    python = new_venv(tmp_path / "venv")
    install(python, wheel, environment=environment)
    run([python, "-c", IMPORT_BOTH], environment, tmp_path)
    assert "Usage" in run([tmp_path / "venv" / "bin" / "tierlog", "--help"], environment, tmp_path)


def test_the_demo_runs_from_the_wheel(
    wheel: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """Without the sources and without any package of the tests."""
    python = new_venv(tmp_path / "venv")
    install(python, wheel, environment=environment)
    bare = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
    tool, place = python.with_name("tierlog"), tmp_path / "demo"
    shown = run([tool, "demo", "--format", "json", "--to", place], bare, tmp_path)
    document = json.loads(shown)
    assert document["passed"] is True
    assert document["records"] == document["records_equal"] == document["records_equal_alone"] > 0
    assert document["mismatches"] == []
    assert (tmp_path / "demo" / "report.html").is_file()


def test_pytest_finds_the_node_of_the_wheel(
    wheel: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    python = new_venv(tmp_path / "venv")
    install(python, wheel, "pytest>=8.4", environment=environment)
    bare = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
    (tmp_path / "test_them.py").write_text(
        "def test_it(tierlog_node):\n"
        "    from kafka import KafkaProducer\n"
        "    tierlog_node.create_topic('orders')\n"
        "    producer = KafkaProducer(bootstrap_servers=tierlog_node.bootstrap_servers)\n"
        "    assert producer.send('orders', b'one').get(30).offset == 0\n"
        "    producer.close()\n"
        "    tierlog_node.tier_now()\n"
    )
    assert "1 passed" in run([python, "-m", "pytest", "-q"], bare, tmp_path)


def test_another_package_calls_the_core_without_the_lock(
    wheel: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """A package that only cimports ``tierlog._hot`` from the installed wheel."""
    python = new_venv(tmp_path / "venv")
    install(python, wheel, "cython>=3.1", "setuptools>=77", environment=environment)
    source = shutil.copytree(CALLER, tmp_path / "caller")
    (shown,) = re.findall(r"^```cython\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    with (source / "native_caller.pyx").open("a") as caller:
        caller.write(shown)
    install(python, "--no-build-isolation", source, environment=environment)
    assert run([python, source / "run.py"], environment, tmp_path) == "fine\n"


def test_pip_install_of_the_folder(
    sources: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    python = new_venv(tmp_path / "venv")
    install(python, sources, environment=environment)
    run([python, "-c", IMPORT_BOTH], environment, tmp_path)


def test_editable_install_runs_the_checkout(
    sources: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    python = new_venv(tmp_path / "venv")
    install(python, "-e", sources, environment=environment)
    where = run([python, "-c", IMPORT_BOTH], environment, tmp_path).strip()
    assert Path(where).is_relative_to(sources)


def test_wheel_from_the_source_distribution(
    sources: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    build = "import setup, sys; print(setup.build_sdist(sys.argv[1]))"
    run([sys.executable, "-c", build, tmp_path], environment, sources)
    (archive,) = tmp_path.glob("tierlog-*.tar.gz")
    with tarfile.open(archive) as members:
        members.extractall(tmp_path / "sdist", filter="data")
    (unpacked,) = (tmp_path / "sdist").iterdir()
    python = new_venv(tmp_path / "venv")
    install(python, unpacked, environment=environment)
    run([python, "-c", IMPORT_BOTH], environment, tmp_path)
