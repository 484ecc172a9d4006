"""What predictions of answers save: a server is asked to repeat files, and is told them before.

    python benchmarks/predicted_answers.py http://127.0.0.1:8000 humaneval.jsonl

The problems are HumanEval's, of which the first short ones are taken, solved. What the model says
to each is asked for first; then it is predicted (chats' ``prediction``) as it is, and changed in
several ways. Every answer must be the first one again. Prints a line for each way: the tokens that
came, the steps of the engine that they took (tokens that were not drafted), and what was drafted in
vain.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST = 700
"""Characters of a file that is asked for."""
OTHER = "The quick brown fox jumps over the lazy dog. " * 20


@dataclass
class Sum:
    tokens: int = 0
    accepted: int = 0
    rejected: int = 0


def files(path: Path, count: int) -> Iterator[tuple[str, str]]:
    """The files, each with the name of its function."""
    found = 0
    for line in path.read_text().splitlines():
        problem = json.loads(line)
        text = (problem["prompt"] + problem["canonical_solution"]).strip()
        if len(text) < LONGEST and found < count:
            found += 1
            yield text, problem["entry_point"]


def predictions(answer: str, name: str) -> dict[str, str]:
    """The answer, changed, by what was changed."""
    lines, words = answer.split("\n"), answer.split(" ")
    half, middle = len(lines) // 2, len(words) // 2
    return {
        "nothing": answer,
        "a name, everywhere": answer.replace(name, "solve"),
        "a word": " ".join([*words[:middle], "changed", *words[middle + 1 :]]),
        "a line more": "\n".join([*lines[:half], "    # says nothing", *lines[half:]]),
        "a line less": "\n".join([*lines[:half], *lines[half + 1 :]]),
        "a sentence before": "Here is the code that you asked for:\n\n" + answer,
        "the first half is missing": answer[len(answer) // 2 :],
        "another text": OTHER,
    }


class Client:
    def __init__(self, url: str, tokens: int) -> None:
        self._url = url.rstrip("/") + "/v1/chat/completions"
        self._tokens = tokens

    def ask(self, text: str, prediction: str | None) -> tuple[str, dict[str, Any]]:
        """What the server says, and its usage."""
        asked = f"Repeat this file exactly. Answer with the code only.\n\n```python\n{text}\n```"
        body: dict[str, Any] = {"messages": [{"role": "user", "content": asked}]}
        body |= {"max_tokens": self._tokens, "temperature": 0}
        if prediction is not None:
            body["prediction"] = {"type": "content", "content": prediction}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            said = json.load(answer)
        return said["choices"][0]["message"]["content"], said["usage"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="of the server, without /v1")
    parser.add_argument("problems", type=Path, help="HumanEval's problems, a line of JSON each")
    parser.add_argument("--files", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=200)
    args = parser.parse_args()
    client, sums, wrong = Client(args.url, args.max_tokens), dict[str, Sum](), 0
    for text, name in files(args.problems, args.files):
        answer, _ = client.ask(text, None)
        for changed, prediction in predictions(answer, name).items():
            again, usage = client.ask(text, prediction)
            wrong += again != answer
            details = usage.get("completion_tokens_details", {})
            total = sums.setdefault(changed, Sum())
            total.tokens += usage["completion_tokens"]
            total.accepted += details.get("accepted_prediction_tokens", 0)
            total.rejected += details.get("rejected_prediction_tokens", 0)
    print("| changed | tokens | steps | tokens a step | drafted in vain |\n|---|---|---|---|---|")
    for changed, total in sums.items():
        steps = total.tokens - total.accepted
        rate = total.tokens / steps
        print(f"| {changed} | {total.tokens} | {steps} | {rate:.1f} | {total.rejected} |")
    print(f"answers other than without a prediction: {wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
