"""What the project's files say of each other must agree."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from support.needs import needs_native

import penstock
from penstock.backends.cpu.variants import VARIANTS
from penstock.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def blocks(path: Path) -> list[str]:
    """The shell commands in the fenced blocks of a Markdown file, continuations joined."""
    text = path.read_text()
    fenced = re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in fenced for line in block.replace("\\\n", " ").splitlines()]


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_versions_agree() -> None:
    assert PROJECT["project"]["version"] == penstock.__version__


def test_continuous_integration_runs_the_readmes_commands() -> None:
    first, second = blocks(ROOT / "README.md")[:2]
    assert "penstock generate" in first
    assert second.endswith("pytest")
    script = (ROOT / ".ci/run").read_text()
    assert second in script
    install, run = first.split(" && ")
    assert f"{install} && {run}" in script
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert "run: .ci/run\n" in workflow
    tested = {each for each in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", each)}
    assert {each.rpartition(" ")[2] for each in tested} == set(re.findall(r'"(3\.\d+)"', workflow))


@needs_native
def test_the_readme_shows_what_its_first_command_prints() -> None:
    command, shown = re.findall(r"^```(?:sh)?\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[:2]
    words = shlex.split(command.splitlines()[0])
    prompt, tokens = words[words.index("-p") + 1], int(words[words.index("--max-tokens") + 1])
    assert words[words.index("--temperature") + 1] == "0"
    with penstock.LLM(threads=1) as llm:
        sampling = penstock.SamplingParams(temperature=0.0, max_tokens=tokens)
        [output] = llm.generate(prompt, sampling)[0].outputs
    assert output.text.strip("\n") == shown.strip("\n")


def test_what_is_compiled_is_what_is_looked_for() -> None:
    build = (ROOT / "csrc/CMakeLists.txt").read_text()
    assert set(re.findall(r"^set\(flags_(?!all)(\w+) ", build, re.MULTILINE)) == {
        variant.isa for variant in VARIANTS
    }
    (pure,) = PROJECT["tool"]["scikit-build"]["overrides"]
    assert pure == {
        "if": {"env": {"PENSTOCK_ISAS": "^none$"}},
        # scikit-build-core refuses a wheel of one Python with nothing compiled in it
        "wheel": {"cmake": False, "py-api": "py3"},
    }


def test_the_image_is_made_of_all_that_an_installation_reads() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    project = PROJECT["project"]
    assert {project["readme"], *project["license-files"], "pyproject.toml"} <= sent
    assert {"CMakeLists.txt", "csrc", "src"} <= sent


def test_a_tag_is_released_with_its_version_and_its_changes(tmp_path: Path) -> None:
    def refused(tag: str) -> str:
        return subprocess.run([script, tag], capture_output=True, text=True).stderr

    (tmp_path / ".ci").mkdir()
    script = shutil.copy(ROOT / ".ci/check_tag", tmp_path / ".ci")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    changes = tmp_path / "CHANGELOG.md"
    changes.write_text("# Changelog\n\n## Unreleased\n\n## 1.2.2 - 2026-01-02\n")
    assert "has no section '## 1.2.3 - " in refused("v1.2.3")
    changes.write_text("# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-02-03\n")
    assert refused("v1.2.3") == ""
    assert "the version in pyproject.toml is 1.2.3" in refused("v1.2.4")
    for tag in ("1.2.3", "v1.2", "v1.2.3rc1", "version"):
        assert "not of the form vX.Y.Z" in refused(tag)


def test_docstrings_that_begin_with_a_preposition_are_found(tmp_path: Path) -> None:
    def told() -> str:
        script = ROOT / ".ci/docstrings"
        return subprocess.run([script, tmp_path], capture_output=True, text=True).stdout

    path = tmp_path / "module.py"
    path.write_text('"""With drafts it says the same."""\nx = 1\n"""As many as there are."""\n')
    assert told() == "0 docstrings to be rephrased\n"
    path.write_text('"""A cache."""\n\ndef rows():\n    """\n    Of the cache, a copy."""\n')
    assert f"{path}:4: " in told()
    assert "'Of the cache, a copy.'" in told()
    path.write_text('x = 1\n"""In bytes."""\n')
    assert "1 docstrings" in told()


def test_the_core_needs_no_torch() -> None:
    names = {re.split(r"[<>=\[]", need)[0] for need in PROJECT["project"]["dependencies"]}
    assert not names & {"torch", "transformers", "triton"}
    sources = ROOT / "src" / "penstock"
    for path in sources.rglob("*.py"):
        if path.is_relative_to(sources / "backends" / "cuda"):
            continue  # the cuda extra brings them
        if path.is_relative_to(sources / "train") or path.name == "train_heads.py":
            continue  # the train extra does; tests/train looks who imports these
        imports = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        assert not {"torch", "transformers", "triton"} & set(imports), path


def test_torch_is_pinned_where_it_is_used() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    # Not for GPUs: which torch goes with a driver is the user's to choose.
    oracles = [need for name, needs in extras.items() if name != "cuda" for need in needs]
    for need in oracles:
        if need.startswith(("torch", "transformers")):
            assert "==" in need, need


def test_the_licence_is_there() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert PROJECT["project"]["license"] == "Apache-2.0"


def commands(path: Path) -> list[str]:
    """The words behind ``penstock`` in a page's blocks, up to the first that is no name."""
    return [
        words for line in blocks(path) for words in re.findall(r"\bpenstock ((?:[a-z]+ ?)+)", line)
    ]


def links(path: Path) -> list[tuple[Path, str]]:
    """What a page links to here: the file, and the anchor in it, which may be empty."""
    found = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", path.read_text())
    return [
        (path.parent / target if target else path, anchor)
        for target, anchor in found
        if "://" not in target
    ]


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as code forges make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    made: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        shown = re.sub(r"\]\([^)]*\)", "", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
        before = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", each) is not None for each in made)
        made.append(f"{slug}-{before}" if before else slug)
    return set(made)


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_documents_name_commands_that_exist(path: Path) -> None:
    known = {" ".join(command.words) for command in COMMANDS}
    groups = {words.rpartition(" ")[0] for words in known} - {""}
    for words in commands(path):
        parts = words.split()
        names = {" ".join(parts[:n]) for n in range(1, len(parts) + 1)}
        assert names & (known | groups), f"{path.name}: penstock {words}"


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in links(path):
        assert target.exists(), f"{path.name}: {target}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{path.name}: {target.name}#{anchor}"


def test_commands_links_and_anchors_are_found() -> None:
    """Otherwise the tests above would pass for a pattern that finds nothing."""
    pages = documents()
    assert {"serve", "generate", "convert"} <= {
        words.split()[0] for page in pages for words in commands(page)
    }
    found = {(target.name, bool(anchor)) for page in pages for target, anchor in links(page)}
    assert {("serve.md", True), ("serve.md", False)} <= found


def test_anchors_of_headings(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("# A page\n\n```sh\n# no heading\n```\n## `a_b`: C, d [e](f.md)\n## A page\n")
    assert anchors(path) == {"a-page", "a_b-c-d-e", "a-page-1"}
