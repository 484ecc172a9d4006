"""Time to the first token of a long prompt: computed, read from disk, and found in memory.

    python benchmarks/kv_tiers.py benchmarks/configs/llama-3.2-1b --load-format dummy \\
        --kv-disk /var/tmp/kv:4GB --json tiers.json
    python benchmarks/kv_tiers.py MODEL --kv-disk DIR:SIZE --kv-cache-dtype int8

Three engines follow one another. The first computes a prompt for each round, and writes its blocks
through. Each later one begins with an empty pool, and the system forgets the files' pages before
each prompt (``posix_fadvise``). The second reads the prompts with nothing beside, and is asked each
once more, which finds it in the pool. The third reads them while another sequence decodes: that
one's steps until the last block has come are compared with those before and behind. ``DIR`` should
be empty, and on a disk: of a file system in memory nothing can be forgotten. The disk's own speed
is that of reading the same files past the page cache, by as many threads as the engine has for
that. The floor is the time of the bytes at that speed, and of the answer that is found in memory:
looking for the prefix, and one step. The last line has how much longer others' steps took in the
mean of all rounds, with its standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, stdev

import msgspec

from penstock.bench.report import report
from penstock.bench.session import Session
from penstock.cli.bench_common import add_json_argument, command_line, machine_rows, print_table
from penstock.cli.options import add_engine_arguments, engine_config, positive_int
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.errors import ConfigError, EngineDeadError, PenstockError
from penstock.interface.messages import EngineRequest, SequenceUpdate, TierStats
from penstock.kv_disk_config import KvDisk
from penstock.kvstore.file_reader import FileReader
from penstock.kvstore.read_memory import ReadMemory
from penstock.kvstore.workers import READERS
from penstock.sampling.params import SamplingParams
from penstock.written_file import write_json

CHUNK = 4 << 20
"""Bytes that a thread reads at once where the disk's own speed is measured."""
WARM_UP = 16
"""Steps of the sequence that decodes before any counts."""
ALONE = 24
"""Steps of that sequence without reading, before and behind."""
OTHER = 64
"""Tokens of its prompt."""


class Round(msgspec.Struct, kw_only=True):
    """One prompt, in seconds."""

    computed_s: float
    disk_s: float = 0.0
    memory_s: float = 0.0
    read_bytes: int = 0
    disk_bandwidth: float = 0.0
    """Bytes a second of the disk itself, just before."""
    disk_beside_s: float = 0.0
    """While another sequence decodes."""
    step_s: float = 0.0
    """The mean step of that one with nothing beside."""
    step_while_reading_s: float = 0.0
    """The mean of those in which blocks came."""
    steps_while_reading: int = 0

    @property
    def slowing(self) -> float:
        """How much longer the other's steps were meanwhile, as a part of those alone."""
        return self.step_while_reading_s / self.step_s - 1

    @property
    def floor_s(self) -> float:
        """The time of the bytes at the disk's own speed, and of an answer found in memory."""
        return self.read_bytes / self.disk_bandwidth + self.memory_s


class Engine:
    """An engine that is stepped here, and its tier."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._count = 0

    @property
    def tier(self) -> TierStats:
        tier = self.core.stats().tier
        if tier is None:
            raise ConfigError("no blocks are kept on disk: see the log")
        return tier

    def add(self, prompt: list[int], tokens: int) -> str:
        self._count += 1
        name = f"r{self._count}"
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        self.core.add_request(
            EngineRequest(request_id=name, prompt_token_ids=prompt, params=params)
        )
        return name

    def step(self) -> list[SequenceUpdate]:
        updates = self.core.step()
        for update in updates:
            if update.error is not None:
                raise EngineDeadError(f"a benchmark request failed: {update.error}")
        return updates

    def first_token_s(self, prompt: list[int]) -> float:
        """Seconds from a request to its only token."""
        began = time.perf_counter()
        name = self.add(prompt, 1)
        while not any(update.request_id == name for update in self.step()):
            pass
        return time.perf_counter() - began

    def settle(self) -> None:
        """Wait until all blocks are written."""
        while self.tier.unwritten_bytes:
            self.core.step()
            time.sleep(0.001)


def files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*.kvseg") if each.is_file())


def forget_pages(folder: Path) -> None:
    """The next reads of these files come from the disk."""
    for path in files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_bandwidth(folder: Path) -> float:
    """Bytes a second of threads that read all files, none of whose pages is in memory."""
    forget_pages(folder)
    memory = ReadMemory()

    def read(reader: FileReader, at: int) -> int:
        piece = memory.take(CHUNK)
        reader.read(piece[:CHUNK], at, past_cache=True)
        memory.give(piece)
        return CHUNK

    opened = [(path, os.open(path, os.O_RDONLY)) for path in files(folder)]
    readers = [FileReader(path, fd) for path, fd in opened]
    pieces = [
        (reader, at)
        for reader, (path, _) in zip(readers, opened, strict=True)
        for at in range(0, path.stat().st_size - CHUNK + 1, CHUNK)
    ]
    with ThreadPoolExecutor(READERS) as threads:
        list(threads.map(lambda _: read(readers[0], 0), range(2 * READERS)))
        began = time.perf_counter()
        total = sum(threads.map(lambda piece: read(*piece), pieces))
        seconds = time.perf_counter() - began
    for reader, (_, fd) in zip(readers, opened, strict=True):
        reader.close()
        os.close(fd)
    return total / seconds


@contextmanager
def engine(config: EngineConfig) -> Iterator[Engine]:
    core = EngineCore.start(config)
    try:
        yield Engine(core)
    finally:
        core.close()


def beside(runner: Engine, prompt: list[int], other: list[int], result: Round) -> None:
    """Read ``prompt`` while another sequence goes on from ``other``, and time that one's steps."""
    decoding = runner.add(other, len(prompt))
    for _ in range(WARM_UP):
        runner.step()
    alone = [timed(runner)[0] for _ in range(ALONE)]
    read = runner.tier.read_bytes
    began = time.perf_counter()
    fetched = runner.add(prompt, 1)
    while_reading: list[float] = []
    while True:
        seconds, updates = timed(runner)
        if any(update.request_id == fetched for update in updates):
            break  # this step has computed its last tokens
        while_reading.append(seconds)
    result.disk_beside_s = time.perf_counter() - began
    alone += [timed(runner)[0] for _ in range(ALONE)]
    runner.core.abort([decoding])
    runner.step()
    if runner.tier.read_bytes == read:
        raise ConfigError("nothing was read from disk: the round says nothing")
    result.step_s = mean(alone)
    result.steps_while_reading = len(while_reading)
    result.step_while_reading_s = sum(while_reading) / max(len(while_reading), 1)


def timed(runner: Engine) -> tuple[float, list[SequenceUpdate]]:
    began = time.perf_counter()
    updates = runner.step()
    return time.perf_counter() - began, updates


def measure(
    config: EngineConfig, folder: Path, prompts: list[list[int]], vocab_size: int
) -> list[Round]:
    results = []
    with engine(config) as runner:
        for prompt in prompts:
            results.append(Round(computed_s=runner.first_token_s(prompt)))
            runner.settle()
    with engine(config) as runner:
        for prompt, result in zip(prompts, results, strict=True):
            result.disk_bandwidth = disk_bandwidth(folder)
            read = runner.tier.read_bytes
            result.disk_s = runner.first_token_s(prompt)
            result.read_bytes = runner.tier.read_bytes - read
            result.memory_s = runner.first_token_s(prompt)
    with engine(config) as runner:
        for round, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
            forget_pages(folder)
            # New in each round: of what is computed the engine knows how long that takes.
            other = [1 + (i * 31 + round * 7) % (vocab_size - 1) for i in range(OTHER)]
            beside(runner, prompt, other, result)
    return results


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_engine_arguments(parser, skip={"max_num_seqs"})
    parser.add_argument("--prompt", type=positive_int, default=8192, help="its tokens")
    parser.add_argument("--rounds", type=positive_int, default=3)
    add_json_argument(parser)
    return parser.parse_args()


def main() -> int:
    args = parse()
    config = msgspec.structs.replace(engine_config(args), max_num_seqs=2)
    disk = config.kv_disk
    if disk is None:
        raise ConfigError("--kv-disk DIR:SIZE says where blocks are kept: it is needed here")
    if config.max_model_len is None:
        config = msgspec.structs.replace(config, max_model_len=args.prompt + 256)
    with Session.open(msgspec.structs.replace(config, kv_disk=None)) as session:
        machine = session.measured(lambda: None)[1]
        engine_plan, vocab_size = session.engine_plan, session.vocab_size
    prompts = [
        [1 + (i * 7919 + round * 104729) % (vocab_size - 1) for i in range(args.prompt)]
        for round in range(args.rounds)
    ]
    folder = Path(KvDisk.parse(disk).folder)
    rounds = measure(config, folder, prompts, vocab_size)
    document = report(
        "kv_tiers",
        command_line(),
        {"prompt": args.prompt, "rounds": args.rounds},
        machine,
        {"rounds": msgspec.to_builtins(rounds), "floors_s": [each.floor_s for each in rounds]},
        engine_plan,
    )
    print_table([*machine_rows(machine), ("KV cache", engine_plan.config.kv_cache_dtype)])
    print(
        "\ncomputed s  disk s  memory s  faster: disk  memory    MB  disk GB/s  x floor  "
        "beside s  step ms  while reading"
    )
    for each in rounds:
        print(
            f"{each.computed_s:>10.2f} {each.disk_s:>7.3f} {each.memory_s:>9.3f} "
            f"{each.computed_s / each.disk_s:>12.1f}x {each.computed_s / each.memory_s:>6.1f}x "
            f"{each.read_bytes / 1e6:>6.0f} {each.disk_bandwidth / 1e9:>9.2f} "
            f"{each.disk_s / each.floor_s:>8.2f} {each.disk_beside_s:>9.3f} "
            f"{each.step_s * 1e3:>8.1f} "
            f"{each.slowing:>+10.1%} of {each.steps_while_reading}"
        )
    slowings = [each.slowing for each in rounds]
    error = stdev(slowings) / len(slowings) ** 0.5 if len(slowings) > 1 else float("nan")
    print(f"\nothers' steps: {mean(slowings):+.1%}, standard error {error:.1%}")
    if args.json:
        write_json(args.json, document)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PenstockError as error:
        sys.exit(f"error: {error}")
