"""What the jobs of a run hand back: measured values, not yet judged."""

from __future__ import annotations

import msgspec


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of all engines, compiled ahead of them."""

    kernels: int
    left_out: int  # the time was over: their engine compiles them
    seconds: float
    processes: int
    problems: list[str] = []


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """What this device reaches with nothing but reading, and nothing but products."""

    read_bytes_per_s: float
    matrix_flops: float  # bfloat16, dense
    read_span_bytes: int
    matrix_size: int  # rows and columns of both factors


class Decode(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that decode one token of each sequence. Times include the host's work."""

    batch: int
    context: int  # tokens of the prompts
    step_s: float  # mean over the best run
    step_s_median: float
    weight_bytes: int  # a step
    kv_bytes: int  # a step
    device_s: float  # the step's plan alone, on the device

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.step_s


class Prefill(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, read in as many steps as the token budget makes of it."""

    tokens: int
    seconds: float  # best
    seconds_median: float
    linear_flops: int
    attention_flops: int


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a large batch, and what of it is not the device running the plan."""

    batch: int
    step_s: float  # mean over the best run
    device_s: float
    processor_s: float  # of the engine's thread, mean over the best run


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Decoding one sequence just after ``position`` tokens."""

    position: int
    itl_s: float
    kv_bytes: int


class OpTime(msgspec.Struct, frozen=True, kw_only=True):
    """All ops of one name in a step."""

    name: str
    launches: int
    seconds: float
    weight_bytes: int


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Where one step's time goes. Ops are launched one by one, without a graph."""

    step: str
    ops: list[OpTime]

    @property
    def seconds(self) -> float:
        return sum(op.seconds for op in self.ops)


class ChunkStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that reads a chunk of a prompt beside sequences that decode; by a graph and without.

    A step's time is that of many queued one behind the other, as the engine does; the host's is
    what queueing one takes while the device waits for it.
    """

    chunk: int  # tokens
    decodes: int
    context: int  # tokens of every sequence after the step
    padded: tuple[int, int] | None  # tokens and logits of the graph; None: none holds the step
    replayed_s: float
    launched_s: float
    replayed_host_s: float
    launched_host_s: float


class Mixed(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of many lengths, offered at once."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    settings: dict[str, str]

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Times from the start of a process that has to import everything."""

    loaded_s: float  # weights filled, kernels compiled, graphs captured
    first_token_s: float


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's measurements; None and empty: not asked for."""

    ready: Ready
    settings: dict[str, str]
    decode: list[Decode] = []
    prefill: Prefill | None = None
    host: Host | None = None
    places: list[Place] = []
    steps: list[StepTimes] = []
    chunk: ChunkStep | None = None
    mixed: Mixed | None = None
    problems: dict[str, str] = {}
    """Measurements that failed by themselves, and why."""

    def decode_of(self, batch: int) -> Decode | None:
        return next((run for run in self.decode if run.batch == batch), None)


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """Tests that ran on the device."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    failures: list[str]
    """Names of the tests, each with the first line of its reason."""
    story: str
    """What became of the published text: ``as published``, how it differs, or why it did not run"""


class BlockProduct(msgspec.Struct, frozen=True, kw_only=True):
    """One product with a matrix ``[n, k]`` in blocks of a format."""

    format: str
    n: int
    k: int
    rows: int
    seconds: float
    weight_bytes: int
    error: float
    """The largest of any, in units of float32's rounding of all terms."""
    rows_alike: bool
    """Whether rows have the same bits alone and beside others."""


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """Products with matrices in blocks."""

    products: list[BlockProduct] = []


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs of a run by name; a job that did not end well is in ``problems``."""

    checks: Checks | None = None
    compile: Compiled | None = None
    ceilings: Ceilings | None = None
    bf16: Engine | None = None
    int8: Engine | None = None
    int4: Engine | None = None
    blocks: Blocks | None = None
    cublas: Engine | None = None
    """bf16 without ``deterministic``."""
    experts: Engine | None = None
    """bf16, of a mixture of experts."""
    experts_int4: Engine | None = None
    again: Engine | None = None
    """bf16, started once more: its kernels are compiled already."""
    latents: Engine | None = None
    """bf16, of a shape of its own, whose attention is over latents."""
    generate: Mixed | None = None
    generate_batch: Mixed | None = None
    problems: dict[str, str] = {}
