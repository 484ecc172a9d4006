"""``penstock train-heads``: what it writes, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.checkpoints import VOCAB, tiny_checkpoint
from support.needs import require_native

from penstock.cli import main as cli

H, FFN = 64, 100
MEDUSA = {
    **{f"{h}.0.linear.weight": (H, H) for h in range(2)},
    **{f"{h}.0.linear.bias": (H,) for h in range(2)},
    **{f"{h}.1.weight": (VOCAB, H) for h in range(2)},
}


def layer(prefix: str, inputs: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}self_attn.q_proj.weight": (64, inputs),
        f"{prefix}self_attn.k_proj.weight": (32, inputs),
        f"{prefix}self_attn.v_proj.weight": (32, inputs),
        f"{prefix}self_attn.o_proj.weight": (H, 64),
        f"{prefix}post_attention_layernorm.weight": (H,),
        f"{prefix}mlp.gate_proj.weight": (FFN, H),
        f"{prefix}mlp.up_proj.weight": (FFN, H),
        f"{prefix}mlp.down_proj.weight": (H, FFN),
    }


EAGLE1 = {
    "fc.weight": (H, 2 * H),
    "fc.bias": (H,),
    **layer("layers.0.", H),
}
EAGLE3 = {
    "fc.weight": (H, 3 * H),
    "midlayer.hidden_norm.weight": (H,),
    "midlayer.input_layernorm.weight": (H,),
    **layer("midlayer.", 2 * H),
    "norm.weight": (H,),
    "lm_head.weight": (40, H),
    "d2t": (40,),
    "t2d": (VOCAB,),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    lines = [{"text": f"{'abcdefgh'[i % 8]} and number {i} and so on. " * 8} for i in range(60)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def train(
    capsys: pytest.CaptureFixture[str], data: Path, out: Path, *options: str | Path
) -> tuple[str, dict[str, object]]:
    """What was printed, and training.json."""
    argv = ["train-heads", *map(str, options), "--data", str(data), "--out", str(out)]
    argv += ["--context", "64", "--batch-tokens", "256", "--held-out", "0.2", "--threads", "1"]
    assert cli.main(argv) == 0, capsys.readouterr().err
    return capsys.readouterr().out, json.loads((out / "training.json").read_text())


def refused(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    assert cli.main(["train-heads", *map(str, argv)]) in (cli.EXIT_USAGE, cli.EXIT_FAILED)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("options", "file", "shapes"),
    [
        (["medusa", "--num-heads", "2"], "medusa_lm_head.safetensors", MEDUSA),
        (["eagle", "--version", "1"], "model.safetensors", EAGLE1),
        (["eagle", "--draft-vocab", "40", "--steps", "3"], "model.safetensors", EAGLE3),
    ],
)
def test_the_published_form_is_written(
    folder: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: Sequence[str],
    file: str,
    shapes: dict[str, tuple[int, ...]],
) -> None:
    options = [*options, str(folder)]
    _, record = train(capsys, data, tmp_path / "heads", *options, "--max-steps", "3")
    tensors = load_file(tmp_path / "heads" / file)
    assert {name: tuple(t.shape) for name, t in tensors.items()} == shapes
    for name, tensor in tensors.items():
        kinds = {"d2t": torch.int64, "t2d": torch.bool}
        assert tensor.dtype == kinds.get(name, torch.bfloat16), name
    config = json.loads((tmp_path / "heads" / "config.json").read_text())
    if options[0] == "medusa":
        assert (config["medusa_num_heads"], config["medusa_num_layers"]) == (2, 1)
        assert config["base_model_name_or_path"] == str(folder)
    elif file == "model.safetensors" and "fc.bias" in shapes:
        assert (config["bias"], config["num_hidden_layers"]) == (True, 1)
        assert "draft_vocab_size" not in config
    else:
        assert (config["draft_vocab_size"], config["target_hidden_size"]) == (40, H)
        assert config["eagle_aux_hidden_state_layer_ids"] == [2, 2, 2]
        assert config["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [1, 1, 1]}
    agreement = record["held_out_agreement"]
    assert isinstance(agreement, list)
    assert all(0 < share < 1 for share in agreement)
    assert f"{agreement[0]:.1%}" in (tmp_path / "heads" / "README.md").read_text()
    assert record["complete"] is True
    assert sorted(p.name for p in (tmp_path / "heads").iterdir()) == sorted(
        ["README.md", "config.json", "training.json", file]
    )


@pytest.mark.slow
def test_a_seed_gives_the_same_heads(
    folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = []
    for seed, out in (("1", "a"), ("1", "b"), ("2", "c")):
        options = ["medusa", folder, "--max-steps", "2", "--seed", seed]
        train(capsys, data, tmp_path / out, *options)
        weights.append((tmp_path / out / "medusa_lm_head.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.slow
def test_the_model_writes_its_own_training_text(
    folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_native()
    options = ["medusa", folder, "--self-generate", "--max-tokens", "24", "--prefix-tokens", "8"]
    printed, record = train(capsys, data, tmp_path / "out", *options, "--max-steps", "2")
    assert printed.startswith("the model continues the text of 60 documents\n")
    assert record["self_generated"] is True


def test_an_interrupt_keeps_what_was_trained(
    folder: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from penstock.train import loop

    steps = 0
    real = loop._step

    def step(*given: object) -> float:
        nonlocal steps
        steps += 1
        if steps == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "_step", step)
    argv = ["train-heads", "medusa", str(folder), "--data", str(data), "--context", "64"]
    argv += ["--batch-tokens", "256", "--held-out", "0.2", "--out", str(tmp_path / "out")]
    assert cli.main(argv) == cli.EXIT_INTERRUPTED
    assert "interrupted; what was trained is in" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert (record["steps"], record["complete"]) == (4, False)
    assert "interrupted before its end" in (tmp_path / "out" / "README.md").read_text()


def test_an_interrupt_before_the_first_step_leaves_nothing(
    folder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.train import run

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "warm_start", interrupted)
    argv = ["train-heads", "medusa", str(folder), "--data", str(data), "--context", "64"]
    argv += ["--held-out", "0.2", "--out", str(tmp_path / "deep" / "out")]
    assert cli.main(argv) == cli.EXIT_INTERRUPTED
    assert not (tmp_path / "deep").exists()


def test_options_that_do_nothing_here_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--data", data, "--out", tmp_path / "out")
    for argv, message in (
        (("medusa", "--steps", "3"), "--steps: is an option of eagle heads"),
        (("medusa", "--layers", "1,2,3"), "--layers: is an option of eagle 3 heads"),
        (("eagle", "--num-heads", "3"), "--num-heads: is an option of medusa heads"),
        (("eagle", "--version", "1", "--draft-vocab", "9"), "is an option of eagle 3 heads"),
        (("eagle", "--token-weight", "1"), "--token-weight: is an option of eagle 1 heads"),
        (("eagle", "--temperature", "1"), "says how --self-generate writes"),
        (("eagle", "--layers", "1,2"), "not three layers: '1,2'"),
        (("eagle", "--version", "2"), "invalid choice"),
        (("hydra",), "invalid choice"),
        (("medusa", "--held-out", "1"), "not a share between 0 and 1"),
        (("medusa", "--minutes", "0"), "not a positive number"),
        (("medusa", "--context", "8"), "shorter than 16"),
        (("medusa", "--context", "16", "--num-heads", "9"), "too short to look 9 ahead"),
        (("medusa", "--device", "tpu"), "torch has no 'tpu' here"),
    ):
        assert message in refused(capsys, *argv, *given), argv
    assert "--data" in refused(capsys, "medusa", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_the_model_cannot_be_trained_for_is_refused(
    folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--data", data, "--out", tmp_path / "out")
    small = tiny_checkpoint()
    for argv, message in (
        (("eagle", folder, "--layers", "1,2,5"), "names layer 5, but the model's are 0 to 4"),
        (
            ("eagle", folder, "--draft-vocab", "302", "--context", "64"),
            "more than the model's 301 tokens",
        ),
        (
            ("eagle", folder, "--draft-vocab", "302", "--context", "64"),
            "than the model's 301 tokens",
        ),
        (("eagle", folder, "--context", "257"), "more than the model's 256 positions"),
        (("eagle", small), "the model has 2 layers, and EAGLE 3 reads"),
        (("eagle", tmp_path / "nowhere"), "there is no folder"),
        (("medusa", folder, "--context", "250", "--batch-tokens", "99999"), "are needed"),
    ):
        assert message in refused(capsys, *argv, *given), argv
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "cannot make the folder" in refused(
        capsys, "medusa", folder, "--data", data, "--out", blocked / "out"
    )


def test_without_torch_the_extra_is_named(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else real(name, *a)
    )
    error = refused(capsys, "medusa", "--data", data, "--out", tmp_path / "out")
    assert "needs torch, which this Python lacks" in error
    assert "pip install 'penstock[train]'" in error


def test_help_imports_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys; from penstock.cli.main import main; main(['--help']); "
        "main(['train-heads', '--help-all']); import penstock.api, penstock.cli.serve; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'penstock.train')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "train-heads" in done.stdout
    for option in ("--data", "--self-generate", "--draft-vocab", "--held-out", "--version"):
        assert option in done.stdout
