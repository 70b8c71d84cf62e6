"""Pages for users: their snippets run as they stand, and what they link to is there."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from benches import harness

if TYPE_CHECKING:
    from tests.kafka.apache import RunningKafka

ROOT = Path(__file__).resolve().parent.parent.parent
TUTORIAL = ROOT / "docs" / "tutorial"
NEED_APACHE = {"queues.md", "exactly-once.md"}
NEED_SPARK = {"from-sparks-connector.md"}
NEED_NOTHING = {path.name for path in TUTORIAL.glob("*.md")} - NEED_APACHE - NEED_SPARK - {"README.md"}
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<to>[^)\s]+)\)")


def check(page: str, servers: str, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "tests.docs.page", str(TUTORIAL / page), servers]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[1-9]\d* snippets\n", done.stdout), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(NEED_NOTHING))
def test_a_tutorial(page, tmp_path):
    with hr.Broker.start() as broker:
        check(page, broker.bootstrap_servers, tmp_path)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(NEED_APACHE))
def test_a_tutorial_that_needs_apache_kafka(page, apache_kafka: RunningKafka, tmp_path):
    check(page, apache_kafka.bootstrap_servers, tmp_path)


@pytest.mark.spark
@pytest.mark.parametrize("page", sorted(NEED_SPARK))
def test_a_tutorial_that_needs_spark(page, tmp_path):
    with hr.Broker.start() as broker:
        check(page, broker.bootstrap_servers, tmp_path)


def anchors(path: Path) -> set[str]:
    """Of the headings, as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page", [str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))]
)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for link in LINK.finditer(re.sub(r"```.*?```|`[^`]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)):
        to, _, anchor = link["to"].partition("#")
        if ":" in to:
            continue
        target = path if not to else (path.parent / to).resolve()
        assert target.exists(), f"{page} links to {link['to']}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page} links to {link['to']}"


def test_tutorials_are_listed():
    listed = {link["to"] for link in LINK.finditer((TUTORIAL / "README.md").read_text(encoding="utf-8"))}
    assert listed == NEED_NOTHING | NEED_APACHE | NEED_SPARK


@pytest.mark.slow
def test_the_site_is_built_without_a_complaint(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")} - {Path("PLAN.md")}
    made = {tmp_path / page.with_suffix(".html") for page in pages if page.name != "README.md"}
    assert not {path for path in made if not path.exists()}
    # What users import is in the reference, and each page in the list for language models.
    reference = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert not [name for name in hr.__all__ if name[0].isupper() and f"{name}" not in reference]
    listed = (tmp_path / "llms.txt").read_text(encoding="utf-8")
    assert not [path for path in made if path.name not in listed]


def test_the_page_of_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    performance = importlib.import_module("performance")
    assert "Nothing has been measured yet" in performance.page(None)
    rows = [
        harness.paired("pause[9 of 10] | Java", [3.0, 2.0], [1.0, 1.0], "M/s", bar=2.0, limit=5.0, group="pause"),
        harness.paired("a record <1>", [1e6], [4e6], "us", bar_below=0.1, group="direct"),
    ]
    harness.save(rows, tmp_path / "latest.json")
    page = performance.page(json.loads((tmp_path / "latest.json").read_text()))
    assert "make bench ARGS='--only pause'" in page
    assert "| pause[9 of 10] \\| Java | 2.5 M/s | 1 | 2.5 (2 to 3) | 50% |  | met |\n" in page
    assert "| a record &lt;1&gt; | 1,000,000 us | 4,000,000 | 0.25 (0.25 to 0.25) |  |  | **missed** |\n" in page
