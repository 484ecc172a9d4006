"""The commands and programs of README.md and docs/ do what the pages say: they are run, but for
those that a comment before them says are not, and why."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest
from support.markdown_blocks import Block, runnable_blocks
from support.needs import REPOSITORY, Need, lacking, needs_native
from support.page_run import page

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
RUN = [path for path in PAGES if any(not block.not_run for block in runnable_blocks(path))]
FILES = {"gguf.md": ["SmolLM2-135M-Instruct.Q4_1.gguf"]}
"""Published files that a page works with."""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_blocks_are_programs(path: Path) -> None:
    """What is not run may say why, and has the form of a program at least."""
    for block in runnable_blocks(path):
        assert block.not_run is None or len(block.not_run.split()) >= 2, str(block)
        if block.language == "python":
            ast.parse(block.text, str(block))
            continue
        checked = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True)
        assert checked.returncode == 0, f"{block}: {checked.stderr}"


def test_a_block_with_its_comment(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "# A page\n\n```sh\na \\\n  b\nc\n```\n\n```\nd\n```\n\n<!-- not run: needs a GPU -->\n\n"
        "```python\nx = 1\n```\n"
    )
    first, second = runnable_blocks(path)
    assert first == Block(path, 3, "sh", "a \\\n  b\nc\n", None)
    assert first.commands == ["a \\\n  b", "c"]
    assert second == Block(path, 15, "python", "x = 1\n", "needs a GPU")


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("path", RUN, ids=lambda path: path.name)
def test_what_a_page_says_runs(path: Path, tmp_path: Path) -> None:
    folder = Path(os.environ.get("PENSTOCK_GGUF_FILES", "/nowhere"))
    models = {name: folder / name for name in FILES.get(path.name, [])}
    for name, model in models.items():
        if not model.exists():
            lacking(Need.FILE, f"{name}, in the folder that PENSTOCK_GGUF_FILES names")
    with page(tmp_path, models) as opened:
        for block in runnable_blocks(path):
            if block.not_run is None:
                opened.run(block)
