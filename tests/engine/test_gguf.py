"""Engines of GGUF files: what they compute, what is told, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Type
from support.checkpoints import tiny_checkpoint
from support.gguf_models import floats, mixed, write_gguf
from support.gguf_nvfp4 import decoded, nvfp4, with_factors

from penstock import LLM, SamplingParams
from penstock.backends import fills
from penstock.backends.cpu.backend import CpuBackend
from penstock.config import EngineConfig
from penstock.demo_model import demo_model_path
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError, TokenizerError
from penstock.interface.weights import WeightValue
from penstock.plan.ops.common import Linear
from penstock.speculative_config import DraftModel
from penstock.weights.checkpoint import CheckpointWeights

PROMPTS = [list(range(3, 60)), [7, 5, 7, 5, 9]]


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint("llama", intermediate_size=96, vocab_size=320)


@pytest.fixture(scope="module")
def in_blocks(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(folder, tmp_path_factory.mktemp("gguf") / "mixed.gguf", mixed)


def mixed_but_output(name: str, shape: tuple[int, ...]) -> Type:
    return Type.F32 if name == "output.weight" else mixed(name, shape)


def tokens(path: Path, tokenizer: Path, **options: Any) -> list[list[int]]:
    options = {"max_model_len": 128, "artifact": False, "threads": 1, **options}
    llm = LLM(str(path), tokenizer=str(tokenizer), **options)
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": each} for each in PROMPTS], params)
    return [output.outputs[0].token_ids for output in outputs]


def test_a_file_of_floats_has_the_bits_of_its_checkpoint(folder: Path, tmp_path: Path) -> None:
    path = write_gguf(folder, tmp_path / "model.gguf", floats)
    assert tokens(path, folder) == tokens(folder, folder)


@pytest.mark.parametrize("options", [{}, {"quantization": "int4"}, {"quantization_group": 32}])
def test_matrices_that_are_packed_in_pieces_have_the_same_bits(
    options: dict[str, Any], in_blocks: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder if options else in_blocks
    if "quantization_group" in options:
        options = options | {"quantization": "int8"}
    whole, read = tokens(path, folder, **options), Counter[str]()
    rows = CheckpointWeights.rows

    def counted(self: CheckpointWeights, name: str, first: int, end: int) -> WeightValue:
        read[name] += end - first
        return rows(self, name, first, end)

    monkeypatch.setattr(fills, "_PIECE", 1 << 12)
    monkeypatch.setattr(CheckpointWeights, "rows", counted)
    assert tokens(path, folder, **options) == whole
    assert read["embed"] == read["head"] == 320


def test_what_is_told_of_a_file_in_blocks(in_blocks: Path, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.symlink_to(in_blocks)
    template = tmp_path / "chat_template.jinja"
    config = EngineConfig(model=str(tmp_path), max_model_len=128)
    template.write_text("{{ messages }}")
    planned = plan_engine(config).config
    assert "of what is not quantized" in planned.reasons["dtype"]
    assert any(f"{template} is not read" in note for note in planned.notes)
    template.unlink()
    assert not any("is not read" in note for note in plan_engine(config).config.notes)
    assert (
        plan_engine(EngineConfig(model=str(folder))).config.reasons["dtype"] == "the checkpoint's"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load_format": "dummy"}, "no dummy weights in the blocks of GGUF files"),
        ({"quantize_head": False}, "--no-quantize-head.* has no effect"),
        ({"quantization_calibration": False}, "--no-quantization-calibration.* has no effect"),
    ],
)
def test_options_without_effect(options: dict[str, Any], message: str, in_blocks: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_engine(EngineConfig(model=str(in_blocks), max_model_len=128, **options))


def test_another_models_tokenizer(in_blocks: Path) -> None:
    with (
        LLM(str(in_blocks), tokenizer=str(demo_model_path()), artifact=False, threads=1) as llm,
        pytest.raises(TokenizerError, match=r"tokens, and the model 320: .* --tokenizer"),
    ):
        llm.generate("a")


def test_blocks_on_both_backends(in_blocks: Path, folder: Path) -> None:
    options = {"dtype": "float32", "quantize_activations": False}
    cpu = tokens(in_blocks, folder, backend="cpu", **options)
    assert cpu == tokens(in_blocks, folder, backend="reference", **options)


def test_factors_of_nvfp4_on_both_backends(tmp_path: Path) -> None:
    """Queries, keys and values that are multiplied together have a factor each, as has the table
    that is looked up and makes logits."""
    tied = tiny_checkpoint("llama", intermediate_size=128, tie_word_embeddings=True, vocab_size=320)
    path = write_gguf(tied, tmp_path / "model.gguf", nvfp4, change=with_factors)
    options = {"dtype": "float32", "quantize_activations": False}
    cpu = tokens(path, tied, backend="cpu", **options)
    assert cpu == tokens(path, tied, backend="reference", **options)
    decoded_path = write_gguf(tied, tmp_path / "floats.gguf", floats, change=decoded)
    assert cpu == tokens(decoded_path, tied, backend="cpu", dtype="float32")
    planned = plan_engine(EngineConfig(model=str(path), tokenizer=str(tied), backend="cpu"))
    schemes = {str(op.scheme) for op in planned.plan.ops if isinstance(op, Linear)}
    assert schemes <= {"NVFP4_SCALED", "NVFP4"}
    assert not any("become" in note for note in planned.config.notes)


def test_a_backend_without_blocks_reads_floats(
    in_blocks: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(
        model=str(in_blocks), tokenizer=str(folder), backend="cpu", dtype="float32"
    )
    kept = plan_engine(config)
    assert not any("become float32" in note for note in kept.config.notes)
    assert any(str(getattr(op, "scheme", None)) == "Q4_0" for op in kept.plan.ops)
    monkeypatch.setattr(CpuBackend, "block_formats", frozenset({"Q8_0"}))
    some = plan_engine(config)
    (note,) = (note for note in some.config.notes if "become float32" in note)
    assert "Q4_0 x 9, Q4_1 x 2, Q5_0 x 2" in note
    schemes = {str(getattr(op, "scheme", None)) for op in some.plan.ops}
    assert schemes == {"None", "Q8_0"}
    options = {"backend": "cpu", "dtype": "float32", "quantize_activations": False}
    monkeypatch.setattr(CpuBackend, "block_formats", frozenset())
    none = tokens(in_blocks, folder, **options)
    monkeypatch.undo()
    assert none == tokens(in_blocks, folder, **options)


def test_what_the_output_matrix_is_in(in_blocks: Path, folder: Path, tmp_path: Path) -> None:
    tied = tiny_checkpoint("llama", tie_word_embeddings=True, vocab_size=320)
    looked_up = write_gguf(tied, tmp_path / "tied.gguf", mixed)
    plain = write_gguf(folder, tmp_path / "plain.gguf", mixed_but_output)
    for path, expected in ((in_blocks, "Q4_0"), (looked_up, "Q8_0"), (plain, "bfloat16")):
        config = EngineConfig(
            model=str(path), tokenizer=str(folder), backend="cpu", dtype="bfloat16"
        )
        planned = plan_engine(config)
        assert planned.config.reasons["quantize_head"] == f"the output matrix in {expected}"
        (scheme,) = (
            op.scheme
            for op in planned.plan.ops
            if isinstance(op, Linear) and op.parts[0].weight in ("head", "embed")
        )
        assert str(scheme or "bfloat16") == expected


def test_nothing_is_rounded_once_more(in_blocks: Path, folder: Path, tmp_path: Path) -> None:
    config = EngineConfig(model=str(in_blocks), tokenizer=str(folder), quantization="int8")
    with pytest.raises(ConfigError, match=r"quantized already .*Q4_0 x 9.* not rounded once more"):
        plan_engine(config)
    path = write_gguf(folder, tmp_path / "model.gguf", floats)
    assert len(tokens(path, folder, quantization="int8")) == 2


def test_a_file_drafts_for_a_file(in_blocks: Path, folder: Path, tmp_path: Path) -> None:
    plain = tokens(in_blocks, folder)
    draft = DraftModel(model=str(write_gguf(folder, tmp_path / "draft.gguf")))
    assert tokens(in_blocks, folder, speculative=draft) == plain


def test_the_name_that_a_server_has_for_it(
    in_blocks: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def served(path: Path, **options: Any) -> str:
        config = EngineConfig(model=str(path), tokenizer=str(folder), **options)
        return plan_engine(config).config.served_model_name

    assert served(in_blocks) == "mixed"
    assert served(in_blocks, served_model_name="mine") == "mine"


def test_engine_artifacts(in_blocks: Path, folder: Path, tmp_path: Path) -> None:
    """Packed blocks are restored; another file of the same name has others."""
    options: dict[str, Any] = {"artifact": True, "artifact_dir": str(tmp_path / "kept")}
    fresh = tokens(in_blocks, folder, **options)
    assert tokens(in_blocks, folder, **options) == fresh
