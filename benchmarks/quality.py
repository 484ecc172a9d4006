"""What quantization costs in quality: bits per byte of a text, scheme by scheme.

    python benchmarks/quality.py TEXT... [--model MODEL] [--schemes none int8 int4 int4:64+zeros]

A scheme is a quantization, a colon and a group if not the default's, ``+zeros`` for zero points,
``+weights`` for weights alone.

Each text is cut into windows of ``--window`` tokens; every token but a window's first counts.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from penstock import LLM, SamplingParams
from penstock.api import Prompt


def bits_per_byte(llm: LLM, text: str, window: int) -> tuple[float, int]:
    """Bits of the text's tokens by the model, and the bytes that they stand for."""
    tokens = llm.tokenizer.encode(text)
    chunks = [tokens[i : i + window] for i in range(0, len(tokens), window)]
    chunks = [chunk for chunk in chunks if len(chunk) > 1]
    prompts: list[Prompt] = [{"prompt_token_ids": chunk} for chunk in chunks]
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    bits, counted = 0.0, 0
    for chunk, output in zip(chunks, llm.generate(prompts, params), strict=True):
        assert output.prompt_logprobs is not None
        for token, logprobs in zip(chunk[1:], output.prompt_logprobs[1:], strict=True):
            assert logprobs is not None
            bits -= logprobs[token].logprob / math.log(2)
        counted += len(llm.tokenizer.decode(chunk[1:]).encode())
    return bits, counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--model", default="")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument(
        "--schemes",
        nargs="+",
        default=["none", "int8", "int8:128", "int4", "int4:32", "int4:64", "int4:128"],
        help="like int4, int4:64, int4:64+zeros, int8+weights",
    )
    options = parser.parse_args()
    texts = [path.read_text(encoding="utf-8") for path in options.texts]
    base = None
    for scheme in options.schemes:
        plain, *flags = scheme.split("+")
        if not set(flags) <= {"zeros", "weights"}:
            parser.error(f"no such scheme: {scheme}; after + stands zeros or weights")
        name, _, group = plain.partition(":")
        llm = LLM(
            model=options.model,
            quantization=name,
            quantization_group=int(group) if group else None,
            quantization_zero_points="zeros" in flags,
            quantize_activations=False if "weights" in flags else None,
            enable_prefix_caching=False,
        )
        sums = [bits_per_byte(llm, text, options.window) for text in texts]
        llm.close()
        value = sum(bits for bits, _ in sums) / sum(count for _, count in sums)
        base = base or value
        print(f"{scheme:16} {value:.4f} bits per byte, {100 * (value / base - 1):+.2f} %")


if __name__ == "__main__":
    main()
