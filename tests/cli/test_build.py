"""``penstock build``: what it writes, lists and removes, and what it does not take."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from support.needs import require_native

from penstock.api import LLM, PromptDict
from penstock.cli import main as cli
from penstock.errors import ContextLengthError
from penstock.sampling.params import SamplingParams


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where artifacts go by default."""
    require_native()
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines"


def artifacts(root: Path) -> list[str]:
    """The folders of artifacts; beside them are the digests of files that were read."""
    return [name for name in os.listdir(root) if name != "digests.json"]


def penstock(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(["build", *argv]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(["build", *argv]) == cli.EXIT_USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_build_list_remove(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo model, which no start would keep by itself."""
    assert penstock(capsys, "--list") == f"0 engine artifacts, 0 bytes, in {root}\n"
    first = penstock(capsys)
    tuned, wrote, ready = first.splitlines()
    assert re.match(r"tuned 1 product for \d+ threads? of .*, measured in \d\.\d s: ", tuned)
    assert re.fullmatch(r"wrote [\d,.]+ (bytes|GB) to \S+ in \d+\.\d s", wrote)
    assert re.match(r"ready in .*, pack weights .*, tune products .*, keep artifact ", ready)
    int4 = penstock(capsys, "--quantization", "int4")
    (small,) = re.findall(r" to (\S+) in ", int4)
    assert Path(small).parent == root
    assert Path(small).name.startswith("model-int4-")
    second = penstock(capsys)
    assert second.startswith("restored ")
    assert ", restore weights " in second
    assert "pack weights" not in second
    assert cli.main(["explain", "--no-plan"]) == 0
    summary = tuned.removeprefix("tuned ")
    assert f"\ntuned    {summary}\n" in capsys.readouterr().out
    listed = penstock(capsys, "--list")
    assert Path(small).name in listed
    assert "int4, head int8" in listed
    assert f"  {tuned}\n" in listed
    assert listed.splitlines()[-1].startswith("2 engine artifacts, ")
    digest = small.rpartition("-")[2]
    assert penstock(capsys, "--remove", digest).startswith(f"removed {Path(small).name}, ")
    assert penstock(capsys, "--remove", "all").count("removed ") == 1
    assert artifacts(root) == []
    assert penstock(capsys, "--remove", "all") == f"there are no engine artifacts in {root}\n"


def test_another_folder(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    out = penstock(capsys, "--artifact-dir", str(other))
    assert f" to {other}/" in out
    assert not root.exists()
    assert f"in {other}" in penstock(capsys, "--list", "--artifact-dir", str(other))
    penstock(capsys, "--remove", "all", "--artifact-dir", str(other))
    assert artifacts(other) == []


def test_generate_starts_from_what_was_built(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However long other work delays packing, this model's is not kept unasked.
    monkeypatch.setattr("penstock.artifact.session.WORTHWHILE_S", 600.0)
    argv = ["generate", "-p", "def f(x):", "--temperature", "0", "--max-tokens", "8", "--json"]

    def text() -> str:
        assert cli.main(argv) == 0
        return str(json.loads(capsys.readouterr().out)["text"])

    caplog.set_level("INFO", "penstock.artifact")
    packed = text()
    assert not root.exists()
    penstock(capsys)
    caplog.clear()
    assert text() == packed
    assert [r.getMessage().split()[0] for r in caplog.records] == ["restored", "tuned"]


def test_damage_is_said_and_repaired(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    penstock(capsys)
    (name,) = artifacts(root)
    folder = root / name
    (folder / "manifest.json").write_text("{}")
    assert "manifest.json is damaged" in penstock(capsys, "--list")
    problem, _, wrote, _ = penstock(capsys).splitlines()
    assert "manifest.json is damaged; the weights are packed again" in problem
    assert wrote.startswith("wrote ")
    assert penstock(capsys).startswith("restored ")


def test_what_cannot_be(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the reference backend packs no weights" in refused(capsys, "--backend", "reference")
    assert "unknown option --no-artifact" in refused(capsys, "--no-artifact")
    assert "not allowed with" in refused(capsys, "--list", "--remove", "all")
    assert "--list: takes no model" in refused(capsys, "--list", "some/model")
    words = refused(capsys, "--remove", "all", "--threads", "2")
    assert "--remove: takes no --threads" in words
    assert "artifact_dir is empty" in refused(capsys, "--artifact-dir", "")
    (tmp_path / "file").touch()
    assert cli.main(["build", "--artifact-dir", str(tmp_path / "file")]) == cli.EXIT_FAILED
    assert "file" in capsys.readouterr().err
    assert cli.main(["build", "--remove", "absent"]) == cli.EXIT_FAILED
    assert "has no engine artifact 'absent'" in capsys.readouterr().err
    assert not root.exists()


def test_options_of_artifacts_that_contradict(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--artifact-dir", str(tmp_path)]
    for argv, words in (
        (["--no-artifact", *where], "has no effect, since artifacts are off"),
        (["--backend", "reference", *where], "since reference keeps no packed weights"),
    ):
        assert cli.main(["explain", *argv]) == cli.EXIT_USAGE
        assert words in capsys.readouterr().err
    assert cli.main(["explain", "--no-plan"]) == 0
    assert re.search(rf"artifact_dir +{root}  \(the default\)", capsys.readouterr().out)
    assert cli.main(["explain", "--no-plan", "--no-artifact"]) == 0
    assert re.search(r"artifact_dir +None  \(as asked\)", capsys.readouterr().out)


def test_an_engine_for_some_lengths(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later starts refuse longer requests, and answer others with the same tokens."""
    monkeypatch.setattr("penstock.backends.cpu.tune._LEAST_S", 0.01)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    unasked = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    prompt: PromptDict = {"prompt_token_ids": list(range(40, 80))}
    with LLM(threads=1) as llm:
        (free,) = llm.generate([prompt], params)
        blocks = llm.config.num_blocks
    penstock(capsys, "--max-input-len", "40", "--max-output-len", "24")
    (name,) = artifacts(root)
    assert "  built for prompts of up to 40 tokens and answers of up to 24 tokens\n" in penstock(
        capsys, "--list"
    )
    with LLM(threads=1) as llm:
        assert (llm.config.max_model_len, llm.config.built) == (64, name)
        assert llm.config.num_blocks < blocks / 10
        (bound,) = llm.generate([prompt], params)
        assert bound.outputs[0].token_ids == free.outputs[0].token_ids
        (whole,) = llm.generate([prompt], unasked)
        assert whole.outputs[0].num_tokens == 24
        for tokens, asked, words in (
            (41, 1, f"prompts may have 40 here .max_input_len, which the engine artifact {name}"),
            (40, 25, "answers may have 24 here .max_output_len"),
        ):
            with pytest.raises(ContextLengthError, match=words):
                llm.generate([{"prompt_token_ids": [1] * tokens}], SamplingParams(max_tokens=asked))
    assert cli.main(["explain", "--no-plan"]) == 0
    shown = capsys.readouterr().out
    assert re.search(
        rf"\nmax_input_len +40  \(as the engine artifact {name} was built for\)", shown
    )
    assert f"note     the engine artifact {name} was built for prompts of up to 40" in shown
    # A start that names lengths has its own.
    with LLM(threads=1, max_model_len=128) as llm:
        assert (llm.config.max_model_len, llm.config.max_input_len) == (128, None)
    assert "built for any lengths" in penstock(capsys)
    with LLM(threads=1) as llm:
        assert llm.config.num_blocks == blocks
