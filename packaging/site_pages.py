"""A hook of MkDocs: the documents in the root of the project become pages beside those in docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files: Files, config: Any) -> Files:
    """Add the documents of the root."""
    for name in PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links between the root and docs lead from page to page."""
    return re.sub(r"\]\((docs|\.\.)/(?=[\w-]+\.md)", "](", markdown)
