"""Finding the GPU, with a made-up driver and torch: every way it can be missing names the fix."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.gpu import Gpu, GpuSearch, find_gpu

GIB = 1 << 30


def driver(devices: int = 1, code: int = 0) -> Any:
    def count(pointer: Any) -> int:
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = devices
        return 0

    return SimpleNamespace(cuInit=lambda flags: code, cuDeviceGetCount=count)


def torch_with(
    version: str = "2.13.0+cu128",
    cuda: str | None = "12.8",
    capability: tuple[int, int] = (9, 0),
    error: Exception | None = None,
) -> Any:
    def properties(index: int) -> Any:
        if error is not None:
            raise error
        return SimpleNamespace(
            name="NVIDIA H100",
            major=capability[0],
            minor=capability[1],
            multi_processor_count=132,
        )

    memory = SimpleNamespace(
        get_device_properties=properties, mem_get_info=lambda index: (79 * GIB, 80 * GIB)
    )
    return SimpleNamespace(__version__=version, version=SimpleNamespace(cuda=cuda), cuda=memory)


def search(
    library: Any = None,
    torch: Any = None,
    missing: tuple[str, ...] = (),
    compilers: tuple[str, ...] = ("gcc",),
    **environment: str,
) -> GpuSearch:
    def load(name: str) -> Any:
        if library is None:
            raise OSError(f"{name}: cannot open shared object file")
        return library

    def import_torch() -> Any:
        assert torch is not None, "torch is imported where nothing asks for it"
        return torch

    return find_gpu(
        GIB,
        environment=environment,
        load_library=load,
        import_torch=import_torch,
        installed=lambda name: name not in missing,
        which=lambda name: name if name in compilers else None,
    )


def test_without_a_driver_there_is_nothing_to_say() -> None:
    found = search()
    assert found == GpuSearch()
    with pytest.raises(ConfigError, match=r"no NVIDIA driver is found.*--backend cpu"):
        found.require()


def test_a_gpu_that_serves() -> None:
    gpu = search(driver(), torch_with()).require()
    assert gpu == Gpu("NVIDIA H100", 80 * GIB, 79 * GIB, 132, (9, 0))
    assert gpu.described == "NVIDIA H100 (capability 9.0, 80 GiB)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"library": driver(code=100)}, "shows no GPU; make one visible"),
        ({"library": driver(0), "CUDA_VISIBLE_DEVICES": ""}, r"\(CUDA_VISIBLE_DEVICES is ''\)"),
        ({"library": driver(code=803)}, r"does not start \(cuInit gives error 803\); nvidia-smi"),
        ({"library": driver(), "missing": ("torch", "triton")}, "torch and triton are not install"),
        ({"library": driver(), "missing": ("triton",)}, r"triton is not.*'penstock\[cuda\]'"),
        ({"library": driver(), "compilers": ()}, "needs a C compiler.*install gcc"),
        ({"library": driver(), "CC": "/no/cc"}, "needs a C compiler"),
        (
            {"library": driver(), "torch": torch_with("2.8.1+cu126")},
            "2.8.1.cu126 is older than 2.9",
        ),
        ({"library": driver(), "torch": torch_with(cuda=None)}, "built without CUDA"),
        (
            {"library": driver(), "torch": torch_with(capability=(7, 5))},
            "has compute capability 7.5, and 8.0 is the least",
        ),
        (
            {
                "library": driver(),
                "torch": torch_with(error=RuntimeError("driver too old\nAdvice")),
            },
            "cannot use the GPU: driver too old; a newer NVIDIA driver may be needed",
        ),
        (
            {"library": driver(), "torch": torch_with(error=RuntimeError("CUDA out of memory."))},
            "CUDA out of memory; end other programs that use it",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_fix(options: dict[str, Any], message: str) -> None:
    found = search(**options)
    assert found.gpu is None
    with pytest.raises(ConfigError, match=message) as raised:
        found.require()
    assert "\n" not in str(raised.value)


def test_a_compiler_may_be_named() -> None:
    assert search(driver(), torch_with(), compilers=("mycc",), CC="mycc").gpu is not None


def test_interpreted_kernels_need_no_gpu() -> None:
    gpu = search(TRITON_INTERPRET="1").require()
    assert gpu.interpreted
    assert gpu.memory_free == GIB
    assert search(TRITON_INTERPRET="0").gpu is None
    with pytest.raises(ConfigError, match="triton is not installed"):
        search(missing=("triton",), TRITON_INTERPRET="1").require()
