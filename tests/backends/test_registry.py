"""The backend option, and what else is decided with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny_plans import make_spec

from penstock.backends.backend import Backend, Obstacle
from penstock.backends.cpu.native import runnable
from penstock.backends.registry import BACKENDS, backend, choose_backend, looked_for
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.gpu import Gpu, GpuSearch
from penstock.hardware import Hardware, detect
from penstock.resolve import resolve
from penstock.resolved_config import ResolvedConfig
from penstock.speculative_config import QuantizedSelf

GIB = 1 << 30
H100 = Gpu("NVIDIA H100", 80 * GIB, 79 * GIB, 132, (9, 0))
INTERPRETER = Gpu("Triton's interpreter", 2 * GIB, 2 * GIB, 1, (8, 0), interpreted=True)


def machine(gpu: Gpu | None = None, problem: str | None = None) -> Hardware:
    return replace(detect(), gpu=GpuSearch(gpu, problem))


def test_auto_takes_a_gpu_that_serves() -> None:
    choice = choose_backend("auto", machine(H100))
    assert (choice.backend.name, choice.gpu) == ("cuda", H100)
    assert choice.notes == (
        "on NVIDIA H100 (capability 9.0, 80 GiB); --backend cpu computes on the CPU",
    )


def test_auto_says_why_a_gpu_is_not_taken() -> None:
    choice = choose_backend("auto", machine(problem="torch is not installed; pip install it"))
    assert choice.backend.name == "cpu"
    assert choice.notes == ("no GPU is used: torch is not installed; pip install it",)


def test_auto_is_the_cpu_without_a_word_where_there_is_no_gpu() -> None:
    for hardware in (machine(), detect(), machine(INTERPRETER)):
        choice = choose_backend("auto", hardware)
        assert (choice.backend.name, choice.gpu, choice.notes) == ("cpu", None, ())


def test_auto_asks_for_obstacles_where_it_can_choose() -> None:
    asked: list[str] = []

    def obstacle(candidate: Backend) -> Obstacle:
        asked.append(candidate.name)
        return Obstacle("it cannot", "choose another")

    assert choose_backend("auto", machine(), obstacle).backend.name == "cpu"
    assert asked == []
    choice = choose_backend("auto", machine(H100), obstacle)
    assert (choice.backend.name, asked) == ("cpu", ["cuda"])
    assert "cuda is not used: it cannot" in choice.notes


def test_what_is_asked_for_is_taken_or_refused() -> None:
    assert choose_backend("cpu", machine(H100)).backend.name == "cpu"
    assert choose_backend("reference", machine(H100)).backend.name == "reference"
    assert "for tests" in choose_backend("cuda", machine(INTERPRETER)).notes[0]
    with pytest.raises(ConfigError, match="cannot run: too old; or choose --backend cpu"):
        choose_backend("cuda", machine(problem="too old"))
    with pytest.raises(ConfigError, match="no NVIDIA driver"):
        choose_backend("cuda", detect())


def test_backends_are_found_by_name() -> None:
    for name, each in BACKENDS.items():
        assert backend(name) is each
    with pytest.raises(ConfigError, match="'tpu'; there are 'cpu', 'cuda' and 'reference'"):
        backend("tpu")


def test_a_gpu_is_looked_for_where_one_may_be_used() -> None:
    for asked in ("cpu", "reference"):
        assert looked_for(asked, detect()).gpu is None
    for asked in ("auto", "cuda"):
        assert looked_for(asked, detect()).gpu is not None


def test_what_backends_say_of_themselves() -> None:
    assert [name for name, each in BACKENDS.items() if each.on_gpu] == ["cuda"]
    assert [name for name, each in BACKENDS.items() if each.keeps_weights] == ["cpu"]
    for each in BACKENDS.values():
        if not each.keeps_weights:
            assert each.packing() is None
        elif runnable():
            assert each.packing() is not None


def resolved(gpu: Gpu | None, **options: Any) -> ResolvedConfig:
    return resolve(EngineConfig(**options), machine(gpu), make_spec(), Path("m"), Path("m")).config


@pytest.mark.parametrize("backend", ["auto", "cuda"])
def test_threads_are_refused_on_a_gpu(backend: Any) -> None:
    with pytest.raises(ConfigError, match=r"threads 4 has no effect on the cuda.*--backend cpu"):
        resolved(H100, backend=backend, threads=4)


def test_the_cpu_is_always_deterministic() -> None:
    assert resolved(None).deterministic
    with pytest.raises(ConfigError, match="turned off on the cuda backend alone"):
        resolved(None, deterministic=False)


def test_artifacts_are_refused_on_a_gpu() -> None:
    with pytest.raises(ConfigError, match="cuda keeps no packed weights"):
        resolved(H100, artifact_dir="/somewhere")


class TestWithTorch:
    """Dividing a GPU's memory asks its kernels what they take."""

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch", reason="torch is not installed")
        pytest.importorskip("triton", reason="triton is not installed")

    def test_defaults_of_a_gpu(self) -> None:
        config = resolved(H100, quantization="int8")
        assert config.backend == "cuda"
        assert (config.max_num_seqs, config.max_num_batched_tokens) == (256, 2048)
        assert config.quantize_activations is False
        assert config.deterministic
        assert config.artifact_dir is None
        assert config.kv_cache_bytes > 0
        assert "on NVIDIA H100" in config.notes[0]
        cpu = resolved(None, quantization="int8")
        assert (cpu.max_num_seqs, cpu.max_num_batched_tokens) == (64, 512)
        assert cpu.quantize_activations is True

    def test_options_of_a_gpu(self) -> None:
        config = resolved(
            H100,
            quantization="int4",
            quantize_activations=True,
            deterministic=False,
            max_num_seqs=3,
            max_num_batched_tokens=64,
            kv_cache_bytes=1 << 24,
        )
        assert (config.quantize_activations, config.deterministic) == (True, False)
        assert (config.max_num_seqs, config.max_num_batched_tokens) == (3, 64)
        assert config.kv_cache_bytes <= 1 << 24

    def test_a_draft_is_reckoned_beside_its_target(self) -> None:
        spec, folder = make_spec(), Path("m")
        asked = EngineConfig(speculative=QuantizedSelf(num_tokens=4))
        config = resolve(asked, machine(H100), spec, folder, folder, spec).config
        assert (config.max_logit_rows, config.rows_per_sequence) == (256 * 5 + 256, 5)
        plain = resolved(H100)
        assert (plain.max_logit_rows, plain.rows_per_sequence) == (256 + 256, 1)
        assert config.num_blocks == plain.num_blocks
        assert config.kv_cache_bytes == 2 * plain.kv_cache_bytes
        draft = resolve(EngineConfig(), machine(H100), spec, folder, folder, drafts=True).config
        assert (draft.max_logit_rows, draft.rows_per_sequence) == (512, 2)
        with pytest.raises(ConfigError, match=r"has 1.00 GiB free.* of the same for the draft"):
            resolve(asked, machine(replace(H100, memory_free=GIB)), spec, folder, folder, spec)
