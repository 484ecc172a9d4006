"""What quantization costs in quality: bits per byte of a text, scheme by scheme.

    python benchmarks/quality.py TEXT... [--model MODEL] [--schemes none int8 int4 int4:64+zeros]

A scheme is a quantization, a colon and a group if not the default's, ``+zeros`` for zero points,
``+weights`` for weights alone, ``+uncalibrated`` for columns scaled by the matrices alone.

The texts are cut, as one, into windows of ``--window`` tokens; every token but a window's first
counts. ``penstock eval`` measures one scheme, and compares it with a base.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.config import EngineConfig
from penstock.evaluate.perplexity import perplexity
from penstock.evaluate.text_model import TextModel
from penstock.evaluate.windows import cut


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--model", default="")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument(
        "--schemes",
        nargs="+",
        default=["none", "int8", "int8:128", "int4", "int4:32", "int4:64", "int4:128"],
        help="like int4, int4:64, int4:64+zeros, int8+weights, int4+uncalibrated",
    )
    options = parser.parse_args()
    text = "".join(path.read_text(encoding="utf-8") for path in options.texts)
    base = None
    for scheme in options.schemes:
        plain, *flags = scheme.split("+")
        if not set(flags) <= {"zeros", "weights", "uncalibrated"}:
            parser.error(f"no such scheme: {scheme}; after + stands zeros, weights or uncalibrated")
        name, _, group = plain.partition(":")
        config = EngineConfig(
            model=options.model,
            quantization=name,
            quantization_group=int(group) if group else None,
            quantization_zero_points="zeros" in flags,
            quantize_activations=False if "weights" in flags else None,
            quantization_calibration="uncalibrated" not in flags,
        )
        with TextModel.open(config, options.window) as model:
            tokens, bos = model.encode(text)
            windows = cut(tokens, options.window, "gptq", bos)
            value = perplexity(model, windows).bits_per_byte
        base = base or value
        print(f"{scheme:16} {value:.4f} bits per byte, {100 * (value / base - 1):+.2f} %")


if __name__ == "__main__":
    main()
