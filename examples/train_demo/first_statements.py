"""Measure how often a model begins the body of a function with a statement that is Python.

    python examples/train_demo/first_statements.py HumanEval.jsonl [--model build/demo]

Each line of the file is an object with a ``prompt``, source that ends in a function's signature
and docstring, and an ``entry_point``, that function's name, as HumanEval's are. The model continues
each prompt greedily. What counts is the first statement of the body behind the docstring: all its
lines, up to the next line that is indented no deeper and opens none of its clauses. It has to be
complete within the tokens given, and the source up to its end has to parse. Nothing is run, so this
says whether the model writes Python, not whether it solves the task.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import penstock

CLAUSE = re.compile(r"\s*(else|elif|except|finally)\b")


@dataclass(frozen=True)
class Problem:
    """A prompt that ends behind a function's docstring, and the function's name."""

    prompt: str
    entry_point: str


def read_problems(file: Path) -> list[Problem]:
    """The problems of a file of JSON lines, in order."""
    records = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line)
    return [Problem(r["prompt"], r["entry_point"]) for r in records]


def body_behind_docstring(source: str, name: str) -> list[ast.stmt]:
    """The statements of function ``name`` without its docstring; none if nothing parses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an escape in a docstring
            module = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            documented = ast.get_docstring(node, clean=False) is not None
            return node.body[1:] if documented else node.body
    return []


def first_statement(problem: Problem, continuation: str) -> ast.stmt | None:
    """The first statement behind the docstring, or None where it does not parse or does not end.

    A whole line ends the statement if it is not blank, is indented no deeper than the statement and
    opens no clause of it. The shortest source that parses is therefore not enough: ``if x:`` with
    one good line may go on with a bad one.
    """
    lines = continuation.split("\n")[:-1]  # what follows the last newline may be half a line
    for end in range(1, len(lines)):
        following = lines[end]
        source = problem.prompt + "\n".join(lines[:end]) + "\n"
        body = body_behind_docstring(source, problem.entry_point)
        if not body or not following.strip():
            continue
        depth = len(following) - len(following.lstrip())
        if depth <= body[0].col_offset and not CLAUSE.match(following):
            return body[0]
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("problems", type=Path, help="a file of JSON lines, such as HumanEval.jsonl")
    parser.add_argument("--model", type=Path, default=penstock.demo_model_path())
    parser.add_argument("--max-tokens", type=int, default=128, help="length of a continuation")
    parser.add_argument("--show", type=int, default=0, help="print this many continuations")
    arguments = parser.parse_args()
    problems = read_problems(arguments.problems)
    parameters = penstock.SamplingParams(temperature=0.0, max_tokens=arguments.max_tokens)
    with penstock.LLM(str(arguments.model)) as llm:
        outputs = llm.generate([p.prompt for p in problems], parameters)
    kinds: Counter[str] = Counter()
    for problem, output in zip(problems, outputs, strict=True):
        statement = first_statement(problem, output.outputs[0].text)
        kinds[type(statement).__name__ if statement else "none"] += 1
        if arguments.show > 0:
            arguments.show -= 1
            print(f"--- {problem.entry_point}: {'parses' if statement else 'does not'}")
            print(output.outputs[0].text)
    print(f"{len(problems) - kinds['none']} of {len(problems)} first statements parse")
    print(", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))


if __name__ == "__main__":
    main()
