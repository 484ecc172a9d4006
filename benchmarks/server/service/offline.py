"""The offline engine in a process of its own: ``LLM.generate`` on what is asked on its input.

Each line of standard input is a JSON :class:`Work`, and each of standard output a :class:`Done`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec

from penstock import LLM, SamplingParams


class Load(msgspec.Struct):
    """The first line: the engine's options."""

    options: dict[str, Any]


class Work(msgspec.Struct):
    prompts: list[list[int]]
    output: int


class Done(msgspec.Struct):
    seconds: float
    cpu_seconds: float
    texts: list[str]
    tokens: int


def main() -> None:
    load = msgspec.json.decode(sys.stdin.readline(), type=Load)
    llm = LLM("", **load.options)
    say(msgspec.json.encode(llm.config.max_model_len))
    for line in sys.stdin:
        work = msgspec.json.decode(line, type=Work)
        params = SamplingParams(temperature=0.0, max_tokens=work.output, ignore_eos=True)
        began, cpu = time.monotonic(), time.process_time()
        outputs = llm.generate([{"prompt_token_ids": p} for p in work.prompts], params)
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        choices = [output.outputs[0] for output in outputs]
        tokens = sum(choice.num_tokens for choice in choices)
        say(msgspec.json.encode(Done(seconds, cpu, [c.text for c in choices], tokens)))


def say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
