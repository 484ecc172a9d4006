"""The types of a native module, which ``csrc/`` implements once per instruction set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.native_ops import BufferId, ConstantId, MatrixId, NativeOps
from penstock.interface.automaton import Automaton
from penstock.interface.mask import TokenMask
from penstock.interface.step import Float32s, Int32s, KvTables

Bytes = NDArray[np.uint8]

StepArrays = tuple[
    Int32s, Int32s, Int32s, Int32s, tuple[KvTables, ...], Int32s, Int32s, Int32s, Int32s, Int32s
]
"""token_ids, positions, query_starts, context_lens, groups, logit_rows, hidden_rows, block_copies,
tree_parents and slot_moves of a StepInput."""


StateArrays = tuple[Int32s, Int32s, Int32s, Int32s, Int32s]
"""slots, seen, tentative, snapshots and copies of StateTables."""


class NativeExecutor(NativeOps, Protocol):
    """The bound op array, built call by call and then run. See ``csrc/executor.h``.

    Element types go by name (``"float32"``, ...), rows by ``"T"``, ``"S"`` or
    ``"R"``, several of each as ``"8T"``. Malformed arguments
    raise ValueError; memory that cannot be had, MemoryError.
    """

    @property
    def op_names(self) -> list[str]: ...

    @property
    def weight_bytes(self) -> int: ...

    def add_buffer(
        self, offset: int, elem: str, cols: int, row_bytes: int, rows: str
    ) -> BufferId: ...

    def join_ranks(self, *, fd: int, rank: int, world: int, slot_bytes: int, crowded: bool) -> None:
        """Be one rank of several, which share the memory of ``fd``: called before ops are
        appended."""
        ...

    def clear_pages_ahead(self, blocks: int) -> None:
        """Have the system clear pages of the KV cache while no step runs, at least so many blocks
        ahead of those that steps have written to."""
        ...

    def add_constant(self, bytes: Bytes) -> ConstantId: ...

    def add_table(self, bytes: int) -> ConstantId:
        """Zeros, of which the system gives what is touched, to be filled little by little."""
        ...

    def set_known_positions(self, positions: int) -> None:
        """Number of positions whose tables are filled: a step with a later one raises
        IndexError."""
        ...

    def reserve_constant(self, bytes: int) -> ConstantId: ...

    def set_key_columns(self, layer: int, columns: ConstantId) -> None:
        """Center and scale the keys of a layer: called before ops are appended."""
        ...

    def constant_copy(self, constant: ConstantId) -> Bytes:
        """A copy of a constant's bytes."""
        ...

    def fill_constant(self, constant: ConstantId, offset: int, bytes: Bytes) -> None: ...

    def add_matrix(self, elem: str, n: int, k: int, gated: bool, experts: int = 1) -> MatrixId: ...

    def pack_rows(self, matrix: MatrixId, first: int, count: int, rows: Bytes) -> None:
        """Pack rows of a matrix, or of one of several experts, whose rows follow each other."""
        ...

    def add_int_matrix(
        self,
        *,
        bits: int,
        group: int,
        n: int,
        k: int,
        gated: bool,
        zero_points: bool,
        weight_only: bool,
        sparse: bool = False,
        experts: int = 1,
    ) -> MatrixId:
        """``sparse``: two of each four codes are held, where ``NativeModule.sparse_panels``."""
        ...

    def pack_int_rows(
        self,
        matrix: MatrixId,
        first: int,
        count: int,
        codes: NDArray[np.int8],
        scales: NDArray[np.float32],
        zeros: NDArray[np.int8] | None,
    ) -> bool:
        """Pack rows; False if panels are sparse and a row has three codes of four that do not stand
        for zero."""
        ...

    def add_grid_matrix(
        self, *, bits: int, n: int, k: int, gated: bool, weight_only: bool, experts: int = 1
    ) -> MatrixId: ...

    def pack_grid_rows(
        self, matrix: MatrixId, first: int, count: int, elem: str, rows: Bytes
    ) -> bool:
        """Round rows to the grid and pack them; False if a value is not finite."""
        ...

    def add_block_matrix(
        self,
        *,
        format: str,
        n: int,
        k: int,
        gated: bool,
        weight_only: bool,
        experts: int = 1,
    ) -> MatrixId: ...

    def pack_block_rows(self, matrix: MatrixId, first: int, count: int, rows: Bytes) -> None:
        """Pack rows of a file's blocks."""
        ...

    def add_codebook_matrix(
        self, *, bits: int, values: str, n: int, k: int, gated: bool, outliers: int
    ) -> MatrixId: ...

    def pack_codebook_rows(
        self,
        matrix: MatrixId,
        first: int,
        codes: Bytes,
        values: NDArray[np.float32],
        ends: Int32s,
        columns: Int32s,
        outliers: NDArray[np.float32],
        first_outlier: int,
    ) -> None:
        """Pack rows in codebooks, as ``CodebookMatrix`` has them, whose outliers are the matrix's
        from ``first_outlier`` on."""
        ...

    def round_rows(
        self,
        elem: str,
        rows: Bytes,
        bits: int,
        group: int,
        codes: NDArray[np.int8],
        scales: NDArray[np.float32],
        zeros: NDArray[np.int8] | None,
    ) -> None:
        """Round ``rows`` into ``codes`` ``[n, k]``, ``scales`` ``[n, groups]`` and, with zero
        points, ``zeros`` ``[n, groups]``."""
        ...

    @property
    def region_bytes(self) -> list[int]:
        """Sizes of the regions of weights: one for each matrix and each reserved constant."""
        ...

    def read_regions(
        self, fd: int, places: list[tuple[int, int]], chunk: int
    ) -> list[list[int]]: ...

    def write_regions(
        self, fd: int, places: list[tuple[int, int]], chunk: int
    ) -> list[list[int]]: ...

    def parameters(self, matrix: MatrixId) -> dict[str, tuple[int, int, int]]:
        """How its product is carried out: value, least and most of each parameter, by name."""
        ...

    def set_parameter(self, matrix: MatrixId, name: str, value: int) -> None: ...

    def product_rows(self, matrix: MatrixId) -> int:
        """The most rows that its product is given."""
        ...

    def fill_inputs(self, matrices: list[MatrixId], rows: int) -> None:
        """Put numbers into what these matrices are multiplied by."""
        ...

    def time_product(self, matrix: MatrixId, rows: int) -> float:
        """Run its product; seconds of processor time of the thread that took longest."""
        ...

    def view(self, buffer: BufferId) -> Bytes:
        """The buffer as bytes ``[max rows, row bytes]``; every step overwrites it."""
        ...

    def kv_copy(self, layer: int) -> Bytes:
        """A copy of a layer's cache, in the layout of ``csrc/types.h``."""
        ...

    @property
    def group_bytes(self) -> list[int]:
        """Bytes of a block of each group of layers, as ``interface/blocks.py`` lays it out."""
        ...

    def read_blocks(self, group: int, blocks: Int32s, out: Bytes) -> list[int]:
        """Copy blocks to ``out``; returns the CRC-32C of each."""
        ...

    def write_blocks(
        self, group: int, blocks: Int32s, bytes: Bytes, checksums: NDArray[np.uint32]
    ) -> int:
        """Write blocks, or nothing if one is not as its checksum says: returns the number of the
        first such among ``blocks``, or -1."""
        ...

    def state_copy(self, slot: int) -> Bytes:
        """A copy of a state slot, in the layout of ``csrc/states.h``."""
        ...

    def run(
        self,
        *step: *StepArrays,
        features: Float32s | None,
        states: StateArrays | None,
        adapters: Int32s | None,
    ) -> None:
        """The arrays of a StepInput; None where no features are read, no states kept, and no
        sequence has an adapter. Releases the GIL."""
        ...

    def profile(
        self,
        *step: *StepArrays,
        features: Float32s | None,
        states: StateArrays | None,
        adapters: Int32s | None,
    ) -> list[tuple[float, float, float]]:
        """Run a step as :meth:`run` does; return the seconds that each op took, of these those that
        the mean thread waited for the last one, and those that the first one waited for other
        ranks."""
        ...

    def close(self) -> None: ...


class NativeSampleState(Protocol):
    """A sequence's ``SamplingState``; see ``csrc/kernels/sample_state.h``."""

    @property
    def plain(self) -> bool: ...

    @property
    def greedy(self) -> bool: ...

    @property
    def logprobs(self) -> int | None: ...

    @property
    def num_output(self) -> int: ...

    def append(self, token_id: int) -> None: ...


class NativeSampler(Protocol):
    """Chooses on an executor's threads, which must not be closed. See ``csrc/kernels/sample.h``."""

    def choose(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[int],
        states: Sequence[NativeSampleState],
        masks: Sequence[TokenMask | None] | None = None,
    ) -> tuple[list[int], list[int]]:
        """A token and a SampleError for each of these rows of logits [R, vocabulary]."""
        ...

    def report(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[int],
        token_ids: Sequence[int],
        counts: Sequence[int],
    ) -> list[tuple[float, int, float, int, list[int], list[float]]]:
        """(logit, rank, peak, total, top ids, top logits); see ``sampling.logprobs.report``."""
        ...


class NativeGram(Protocol):
    """See ``csrc/kernels/gram.h``."""

    block: int
    """Columns of the squares on the diagonal: what is right of them is not written."""

    def add(self, rows: Float32s, sums: Float32s) -> None: ...


class NativeModule(Protocol):
    """One variant. The single-kernel functions that only tests call are not listed."""

    isa: str
    packed_layout: int
    sparse_panels: bool
    """Whether the machine multiplies by panels that hold two of each four codes."""
    SuffixAutomaton: type[Automaton]

    def prepare(self) -> bool:
        """Ask the system for what this variant's registers need; False if it refuses."""
        ...

    def available_cpus(self) -> list[int]: ...

    # The native class: called with keywords, it makes a NativeExecutor.
    def Executor(self, **shape: Any) -> NativeExecutor: ...

    def Sampler(self, executor: NativeExecutor, columns: int) -> NativeSampler: ...

    def SampleState(self, **options: Any) -> NativeSampleState: ...

    def encode_blocks(
        self,
        format: str,
        values: Float32s,
        importance: Float32s | None,
        out: Bytes,
    ) -> None:
        """Round whole blocks of finite values; see ``csrc/kernels/encode_blocks.h``."""
        ...

    def block_size(self, format: str) -> tuple[int, int]:
        """The columns and bytes of a file's block, as the kernels read it."""
        ...

    def Gram(self, threads: int, elem: str) -> NativeGram: ...

    def crc32c(self, bytes: NDArray[np.uint8], before: int = 0) -> int:
        """CRC-32C of bytes, contiguous, after such whose checksum is ``before``."""
        ...

    def measure_reading(self, bytes: int, threads: int, seconds: float) -> tuple[float, float]: ...

    def measure_f32(self, threads: int, seconds: float) -> tuple[float, float]: ...

    def measure_bf16(self, threads: int, seconds: float) -> tuple[float, float]: ...

    def measure_int8(self, threads: int, seconds: float) -> tuple[float, float]: ...

    def second_level_cache(self) -> int:
        """Bytes of L2 that one core can count on; see ``csrc/caches.h``."""
        ...

    def second_level_share(self, folder: str, cpus: Sequence[int]) -> int:
        """The same of ``cpus`` by what ``folder`` says, as /sys/devices/system/cpu does; 0 where
        it says nothing."""
        ...
