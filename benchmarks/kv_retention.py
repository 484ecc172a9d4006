"""What a disk of prefixes finds, by what makes room on it: its books alone, on a trace.

``python benchmarks/kv_retention.py mooncake_conversation.jsonl`` replays a trace of Mooncake's form
(https://github.com/kvcache-ai/Mooncake), all its requests, with lengths divided by ``--divide``,
against disks of several sizes: plain LRU, what the engine does
(:class:`penstock.cache.retention.Lru`), and a disk that never forgets, in one run. Blocks are of
``--block`` tokens; of a prompt only whole ones are kept. With ``--answers`` an answer takes room as
well: in such a trace nobody can tell which later prompt it is a part of.

Prints a table, and with ``--json`` the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from penstock.cache.retention import ONCE_AGES, Lru
from penstock.workload.trace import read_lines
from penstock.workload.trace_line import TraceLine

Item = tuple[int, ...]

SIZES: Final = (800_000, 1_600_000, 3_200_000, 6_400_000)


@dataclass(frozen=True)
class Asked:
    """A request: when it comes in seconds, and its chains of blocks."""

    at: float
    prompt: list[Item]
    answer: list[Item]


@dataclass(frozen=True)
class Found:
    """Blocks of prompts that were found."""

    tokens: int
    """What the disk holds."""
    once_ages: float
    hits: int
    of_all: float
    """Part of what a disk finds that never forgets."""


def asked(lines: Sequence[TraceLine], divide: int, block: int, answers: bool) -> Iterator[Asked]:
    for number, line in enumerate(lines):
        ids = line.hash_ids
        if ids is None:
            raise SystemExit(f"line {number + 1} has no hash_ids, by which prompts share prefixes")
        each = line.block_size // divide
        if each % block:
            raise SystemExit(f"{line.block_size} / {divide} tokens are no whole blocks of {block}")
        length = line.input_length // divide
        per = each // block
        prompt = [(ids[i // per], i % per) for i in range(length // block)]
        whole = (length + line.output_length // divide) // block
        answer = [(-1, number, i) for i in range(len(prompt), whole)] if answers else []
        yield Asked((line.timestamp or 0.0) / 1000, list(prompt), list(answer))


def replay(requests: Sequence[Asked], capacity: int, once_ages: float) -> int:
    """Return how many blocks of prompts are found on a disk of so many blocks."""
    held: Lru[Item] = Lru(once_ages)
    hits = 0
    for request in requests:
        found = 0
        while found < len(request.prompt) and request.prompt[found] in held:
            found += 1
        hits += found
        for item in reversed(request.prompt[:found]):
            held.use(item, request.at)
        chain = [*request.prompt, *request.answer][:capacity]
        new = [i for i in range(found, len(chain)) if chain[i] not in held]
        for victim in held.victims(len(held) + len(new) - capacity, request.at, set(chain)):
            held.drop(victim)
        for i in reversed(new):
            held.add(chain[i], chain[i - 1] if i else None, request.at)
    return hits


def compare(requests: Sequence[Asked], block: int, sizes: Sequence[int]) -> Iterator[Found]:
    total = sum(len(each.prompt) + len(each.answer) for each in requests)
    most = replay(requests, total, 1.0)
    for tokens in sizes:
        for once_ages in (1.0, ONCE_AGES):
            hits = replay(requests, tokens // block, once_ages)
            yield Found(tokens, once_ages, hits, hits / max(most, 1))


def main(argv: Sequence[str], say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--divide", type=int, default=8, help="lengths by this number")
    parser.add_argument("--block", type=int, default=32, help="tokens of a block")
    parser.add_argument("--answers", action="store_true", help="answers take room, too")
    parser.add_argument("--tokens", type=int, nargs="+", default=SIZES, help="sizes of the disk")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args(argv)
    lines = [line for _, line in read_lines(args.trace)]
    requests = list(asked(lines, args.divide, args.block, args.answers))
    figures = list(compare(requests, args.block, args.tokens))
    say("| tokens on disk | LRU, of what never forgets | here | of LRU's hits |")
    say("|---|---|---|---|")
    for plain, ours in zip(figures[::2], figures[1::2], strict=True):
        ratio = ours.hits / max(plain.hits, 1)
        say(f"| {plain.tokens:,} | {plain.of_all:.1%} | {ours.of_all:.1%} | {ratio:.3f} |")
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(each) for each in figures], indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
