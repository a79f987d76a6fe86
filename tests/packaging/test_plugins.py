"""A third-party package, installed from its wheel: tiering goes through all its parts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR

LOG_DIR = str(DATA_DIR / "clean" / "disk1")
SOURCE = Path(__file__).parent / "vault"


def run(*command: str, site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the installed package beside everything else."""
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=cwd,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the package's wheel is installed into."""
    folder = tmp_path_factory.mktemp("vault")
    shutil.copytree(SOURCE, folder / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", str(folder)]
    subprocess.run([*pip, *build, str(folder / "source")], check=True)
    (wheel,) = folder.glob("*.whl")
    install = ["install", "--no-deps", "--no-index", "--target", str(folder / "site")]
    subprocess.run([*pip, *install, str(wheel)], check=True)
    return folder / "site"


def settings_of(folder: Path, **more: str) -> str:
    """A properties file that names both managers, one by its entry point, one by its class."""
    lines = {
        "remote.log.storage.manager.class.name": "vault",
        "rsm.config.drawers": str(folder / "drawers"),
        "remote.log.metadata.manager.class.name": "vault:VaultMetadata",
        "remote.log.metadata.manager.impl.prefix": "vault.metadata.",
        "vault.metadata.database": str(folder / "vault.sqlite"),
        "tierlog.remote.index.dir": str(folder / "index"),
        "tierlog.remote.index.interval.bytes": "1000",
        **more,
    }
    file = folder / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return str(file)


def test_the_suites_of_the_wheel_run_in_the_package(site: Path, tmp_path: Path) -> None:
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "vault.test_vault"]
    done = run(*command, "--import-mode=importlib", site=site, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tiering_goes_through_all_three(site: Path, tmp_path: Path) -> None:
    url = f"vault://anywhere{tmp_path}/objects"
    tier = [*("-m", "tierlog", "tier", LOG_DIR, "--to", url, "--once", "--topic", "epochs")]
    tier += ["--state-dir", str(tmp_path / "state"), "--config"]
    done = run(*tier, settings_of(tmp_path), site=site, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("3 segments copied")
    configured = json.loads((tmp_path / "drawers" / "configured").read_text())
    assert configured["drawers"] == str(tmp_path / "drawers")
    assert configured["tierlog.store.url"] == url
    assert {"cluster.id", "broker.id"} < configured.keys()
    assert len(list((tmp_path / "drawers").glob("*/log"))) == 3
    # The object store of the URL has the cluster marker and no segment.
    names = [path.stem for path in (tmp_path / "objects").rglob("*.object")]
    assert b"cluster.json".hex() in names
    assert not [name for name in names if name.endswith(b".log".hex())]
    # Their ids are in the remote index files as they are.
    index = b"".join(path.read_bytes() for path in (tmp_path / "index").rglob("*.remoteLogIndex"))
    assert index.count(b"hdfs://vault/") > 3

    again = run(*tier, settings_of(tmp_path), site=site, cwd=tmp_path)
    assert "0 segments copied" in again.stderr

    cat = ["-m", "tierlog", "cat", url, "epochs:0", "-f", "%o\\n", "--config"]
    read = run(*cat, settings_of(tmp_path), site=site, cwd=tmp_path)
    assert read.returncode == 0, read.stderr
    whole = run(*cat[:3], LOG_DIR, *cat[4:-1], site=site, cwd=tmp_path)
    assert read.stdout
    assert whole.stdout.startswith(read.stdout)
    late = run(*cat[:5], "-o", "200", *cat[5:], settings_of(tmp_path), site=site, cwd=tmp_path)
    assert late.stdout.split()[0] == "200"


def test_an_object_store_needs_no_setting(site: Path, tmp_path: Path) -> None:
    url = f"vault://anywhere{tmp_path}/objects"
    tier = ["-m", "tierlog", "tier", LOG_DIR, "--to", url, "--once", "--topic", "epochs"]
    done = run(*tier, "--state-dir", str(tmp_path / "state"), site=site, cwd=tmp_path)
    assert done.stderr.startswith("3 segments copied"), done.stderr
    verified = run("-m", "tierlog", "verify", url, site=site, cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout
    unknown = run("-m", "tierlog", "ls", "bank://x", site=site, cwd=tmp_path)
    assert (unknown.returncode, "unknown kind of store" in unknown.stderr) == (2, True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rsm.config.padding": "200"}, "200 bytes of custom metadata, expected at most 128"),
        ({"remote.log.storage.manager.class.name": "bank"}, "no installed package has an entry"),
        ({"remote.log.storage.manager.class.name": "bank:Vault"}, "cannot be loaded: No module"),
        ({"remote.log.storage.manager.class.name": "json:JSONDecoder"}, "expected a subclass of"),
    ],
)
def test_what_cannot_be_used_says_so(
    more: dict[str, str], message: str, site: Path, tmp_path: Path
) -> None:
    tier = ["-m", "tierlog", "tier", LOG_DIR, "--to", f"vault://x{tmp_path}/o", "--once"]
    tier += ["--state-dir", str(tmp_path / "state"), "--topic", "epochs", "--config"]
    done = run(*tier, settings_of(tmp_path, **more), site=site, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert message in done.stdout + done.stderr, done.stderr
    assert not list((tmp_path).glob("drawers/*/log"))


def test_a_brokers_own_java_classes_are_passed_over(site: Path, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    java = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    file.write_text(
        f"remote.log.storage.manager.class.name={java}\nrsm.config.dir=/tmp\n"
        f"remote.log.metadata.manager.class.name={java}\n"
    )
    store = tmp_path / "store"
    tier = ["-m", "tierlog", "tier", LOG_DIR, "--to", store.as_uri(), "--once", "--config"]
    arguments = [*tier, str(file), "--topic", "epochs", "--state-dir", str(tmp_path / "state")]
    done = run(*arguments, site=site, cwd=tmp_path)
    assert done.stderr.startswith("3 segments copied"), done.stderr
