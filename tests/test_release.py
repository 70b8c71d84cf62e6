"""What is checked before a release, and that the version stands in one place."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import headrace as hr

ROOT = Path(__file__).parent.parent


@pytest.fixture
def release(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("release")


def tree(folder, changes):
    (folder / "Cargo.toml").write_text('[workspace.package]\nversion = "1.2.3"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changes\n\n{changes}")
    return folder


def test_a_tree_that_is_ready(release, tmp_path):
    assert release.complaints("v1.2.3", tree(tmp_path, "## 1.2.3 (2026-11-28)\n- New.\n\n## 1.2.2\n- Old.\n")) == []


@pytest.mark.parametrize(
    ("tag", "changes", "said"),
    [
        ("v1.2.4", "## 1.2.3\n- New.\n", "v1.2.3 is the tag to set"),
        ("v1.2.3", "## Unreleased\n- New.\n", 'has no heading "## 1.2.3"'),
        ("v1.2.3", "## 1.2.3-rc.1\n- New.\n", 'has no heading "## 1.2.3"'),
        ("v1.2.3", "## 1.2.3\n\n## 1.2.2\n- Old.\n", "says nothing under 1.2.3"),
        ("v1.2.3", "## Unreleased\n- Newer.\n\n## 1.2.3\n- New.\n", "still has"),
    ],
)
def test_what_is_missing_is_said(release, tmp_path, tag, changes, said):
    found = release.complaints(tag, tree(tmp_path, changes))
    assert any(said in complaint for complaint in found), found


def test_the_module_has_the_version_of_the_tree(release):
    assert hr.__version__ == release.version()


def test_the_workflow_calls_targets_that_there_are():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = {target for command in commands for target in re.findall(r"\bmake (\w+)", command)}
    assert targets == {"test", "wheel"}
    known = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets <= set(known)
    for script in (name for command in commands for name in re.findall(r"scripts/\S+\.py", command)):
        assert (ROOT / script).exists()


def test_licences_of_what_is_linked():
    command = [sys.executable, str(ROOT / "scripts" / "licences.py"), "aarch64-unknown-linux-gnu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    crates, _, texts = done.stdout.partition("=" * 100)
    assert re.search(r"^arrow-array \S+: Apache-2\.0", crates, re.MULTILINE)
    assert not re.search(r"^headrace", crates, re.MULTILINE)
    # Not what only tests or build scripts need.
    assert not re.search(r"^(proptest|cc) ", crates, re.MULTILINE)
    assert texts.count("Permission is hereby granted") >= 5
