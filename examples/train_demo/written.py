"""What the demo model itself writes after places of its corpus, to train its draft and heads on.

    python examples/train_demo/written.py build/corpus/written --packages build/packages

A draft is accepted where it is what the model would have written, so the model's own text teaches
more than other text does. Prompts are a few lines of documents chosen by chance, none of them held
out, and are continued greedily; those of one document make one file.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from corpus import Document, read_documents, read_packages, split
from penstock import demo_model_path
from penstock.tokenizer import Tokenizer, load_tokenizer
from penstock.train.data import Sample
from penstock.train.self_generated import Continuation, continue_samples

PREFIX = 64
LIBRARY_SHARE = 0.7  # of the prompts: what the demo model knows is the library, mostly


def prompts_of(
    documents: list[Document], tokenizer: Tokenizer, generator: np.random.Generator
) -> Iterator[Sample]:
    """Endless prompts: of a document chosen by chance, ``PREFIX`` tokens from a line's start on."""
    while True:
        document = documents[int(generator.integers(len(documents)))]
        lines = document.text.splitlines(keepends=True)
        start = int(generator.integers(max(1, len(lines) - 10)))
        ids = tokenizer.encode("".join(lines[start : start + PREFIX])[: 8 * PREFIX], False)[:PREFIX]
        if len(ids) == PREFIX:
            yield Sample(document.path, ids, PREFIX)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", type=Path, help="folder to write the files to")
    parser.add_argument("--packages", type=Path, help="a folder of packages, as of train.py")
    parser.add_argument("--model", type=Path, default=demo_model_path())
    parser.add_argument("--prompts", type=int, default=18_000)
    parser.add_argument("--max-tokens", type=int, default=128, help="written after each prompt")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    tokenizer = load_tokenizer(arguments.model)
    library, held_out = split(read_documents())
    generator = np.random.default_rng(arguments.seed)
    packages = read_packages(arguments.packages, held_out) if arguments.packages else []
    count = arguments.prompts
    of_library = round(count * LIBRARY_SHARE) if packages else count
    prompts = list(islice(prompts_of(library, tokenizer, generator), of_library))
    prompts += islice(prompts_of(packages, tokenizer, generator), count - of_library)
    how = Continuation(0.0, arguments.max_tokens, PREFIX, arguments.seed)
    texts: dict[str, list[str]] = defaultdict(list)
    for sample in continue_samples(str(arguments.model), prompts, how, lambda text: None):
        texts[sample.name].append(tokenizer.decode(sample.token_ids))
    for name, written in texts.items():
        Document(name, "\n\n".join(written)).write(arguments.out)
    print(f"{len(prompts)} continuations in {len(texts)} files in {arguments.out}")


if __name__ == "__main__":
    main()
