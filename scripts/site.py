"""What mkdocs is hooked up with: links out of docs/, the page of what was measured, a text for language models."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parent))
import performance

OUTSIDE = re.compile(r"\]\(\.\./(?P<path>(?!tutorial/)[^)]+)\)")
_SEEN: dict[str, tuple[str, str]] = {}


def on_files(files: Files, *, config: Any, **_: Any) -> Files:
    """Adds the page of what `make bench` has measured on this machine."""
    path = Path(config.config_file_path).parent / "benches" / "results" / "latest.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    files.append(File.generated(config, "performance.md", content=performance.page(found)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Notes what the page is about, and points links at the repository."""
    title = re.search(r"^# (.+)$", markdown, re.MULTILINE)
    about = re.search(r"\n\n([^\n#|`<!].+?)\n\n", markdown)
    _SEEN[page.url] = (title[1] if title else page.url, about[1] if about else "")
    if page.file.src_uri.count("/"):
        return markdown
    return OUTSIDE.sub(lambda link: f"]({config.repo_url}/blob/main/{link['path']})", markdown)


def on_post_build(*, config: Any, **_: Any) -> None:
    """Writes llms.txt (llmstxt.org): each page with its first sentences."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    lines += [f"- [{title}]({url}): {about}" for url, (title, about) in _SEEN.items()]
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
