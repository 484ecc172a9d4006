"""llama.cpp compiled for this machine out of llama-cpp-python's source distribution.

One build serves the Python binding and llama-server: the binding is installed without a library
of its own and told where this one is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from comparison.cap import Cap

VERSION = "0.3.36"
SDIST = f"llama_cpp_python-{VERSION}.tar.gz"
TARGETS = ("llama-server", "llama-bench", "llama-batched-bench")
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
HEADER = Path(__file__).with_name("tile_config.h")

Command = tuple[list[str], dict[str, str]]


@dataclass(frozen=True)
class LlamaBuild:
    """``work/llama.cpp``: the unpacked source, its builds, and the header that goes before it.

    A build is for this machine, or for those that ``cap`` stands for.
    """

    work: Path
    cap: Cap | None = None

    @property
    def folder(self) -> Path:
        return self.work / "llama.cpp"

    @property
    def build(self) -> Path:
        return self.folder / ("build" if self.cap is None else f"build-{self.cap.name}")

    @property
    def binaries(self) -> Path:
        return self.build / "bin"

    @property
    def done(self) -> bool:
        return (self.binaries / "llama-server").exists()

    @property
    def variables(self) -> dict[str, str]:
        return {
            "LLAMA_CPP_LIB_PATH": str(self.binaries),
            "LLAMA_SERVER": str(self.binaries / "llama-server"),
        }

    def commands(self, python: Path) -> Iterator[Command]:
        """What to run, in order; ``python`` has pip, cmake and ninja."""
        sdist, source = self.folder / SDIST, self.folder / "source"
        path = {"PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])}
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (source / "CMakeLists.txt").exists():
            source.mkdir(exist_ok=True)
            if not sdist.exists():
                wanted = f"llama-cpp-python=={VERSION}"
                only_source = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
                yield (
                    [str(python), "-m", "pip", "download", *only_source]
                    + ["--dest", str(self.folder), wanted],
                    path,
                )
            yield ["tar", "xzf", str(sdist), "-C", str(source), "--strip-components=1"], path
        header = self.folder / HEADER.name
        if not header.exists() or header.read_bytes() != HEADER.read_bytes():
            shutil.copyfile(HEADER, header)
        instructions = ("-DGGML_NATIVE=ON",) if self.cap is None else self.cap.llama_options
        yield (
            ["cmake", "-S", str(source / "vendor" / "llama.cpp"), "-B", str(self.build)]
            + ["-G", "Ninja", *OPTIONS, *instructions]
            + [f"-DCMAKE_CXX_FLAGS=-include {header}"],
            path,
        )
        yield ["cmake", "--build", str(self.build), "--target", *TARGETS], path
        yield (
            [str(python), "-m", "pip", "install", str(source)],
            {**path, "CMAKE_ARGS": "-DLLAMA_BUILD=OFF"},
        )
