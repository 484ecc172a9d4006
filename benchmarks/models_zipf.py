"""A server of several models under a budget of memory, asked for all of them by a Zipf law.

    python benchmarks/models_zipf.py --memory 2GB --kv-cache-bytes 256MB \\
        demo= stories=DIR small=SMALL.gguf:dtype=float32 ...

Each NAME=MODEL[:OPTION=VALUE,...] is a model of the catalogue, most popular first; no MODEL is the
demo model. First every model answers all prompts alone, in a server of its own. Then the repository
is asked: the model of each request is drawn with probability 1 / rank**skew, its prompt evenly.
Every answer must equal the one that the model gave alone; no request may fail; and the memory of
all processes but the HTTP server is looked at every 100 ms, and must stay under the budget. Prints
a line of JSON with what was seen, and exits with 1 where any of that does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.cli.options import parse_size
from penstock.demo_model import demo_model_path
from penstock.server.models.footprint import process_bytes

PROMPTS = (
    "Once upon a time",
    "def fib(n):",
    "The capital of France is",
    "Lily and Ben went to the park.",
    "import numpy as np\n",
    "1 2 3 4 5",
    "The dog",
    "class Tree:\n    def __init__(self",
)
TOKENS = 12
LOOK_S = 0.1
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Model:
    name: str
    path: str
    options: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Model:
        name, _, rest = text.partition("=")
        path, _, options = rest.partition(":")
        pairs = (each.partition("=") for each in options.split(",") if each)
        return cls(name, path or str(demo_model_path()), {key: value for key, _, value in pairs})


@dataclass
class Seen:
    """What came of all requests."""

    wrong: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    most_bytes: int = 0


class Server:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.pid = process.pid
        self.port = port

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        headers = {"Content-Type": "application/json"}
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return answer.status, text.decode() if path == "/metrics" else json.loads(text)

    def text(self, model: str, prompt: str) -> str:
        """What the model says. Raises RuntimeError for a request that is refused."""
        body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        status, answer = self.ask("POST", "/v1/completions", body)
        if status != 200:
            raise RuntimeError(f"{status}: {answer}")
        text: str = answer["choices"][0]["text"]
        return text

    @property
    def model_bytes(self) -> int:
        """The memory of the processes below the one that serves HTTP."""
        children = [int(child) for guarded in _children(self.pid) for child in _children(guarded)]
        return sum(map(process_bytes, children))


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    return []


@contextlib.contextmanager
def serving(*words: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "penstock", "serve", *words, "--port", "0", "--no-page"]
    with subprocess.Popen(
        [*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            port = 0
            for line in process.stdout:
                found = re.search(r" at http://[^:]+:(\d+)/", line)
                port = int(found[1]) if found else port
                if line.startswith("ready in "):
                    break
            yield Server(process, port)
        finally:
            process.send_signal(signal.SIGTERM)


def alone(models: Sequence[Model], options: Sequence[str]) -> dict[tuple[str, str], str]:
    """What each model says to each prompt in a server of its own."""
    said = {}
    for model in models:
        own = [word for key, value in model.options.items() for word in _option(key, value)]
        words = (model.path, "--served-model-name", model.name, *options, *own)
        with serving(*words) as server:
            for prompt in PROMPTS:
                said[model.name, prompt] = server.text(model.name, prompt)
        print(f"{model.name} alone: {said[model.name, PROMPTS[0]]!r}", file=sys.stderr)
    return said


def _option(key: str, value: str) -> tuple[str, str]:
    return "--" + key.replace("_", "-"), value


def catalogue(models: Sequence[Model]) -> str:
    lines = []
    for model in models:
        lines += ["[[models]]", f"name = {json.dumps(model.name)}"]
        lines += [f"model = {json.dumps(model.path)}", "[models.options]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in model.options.items()]
    return "\n".join(lines) + "\n"


def drawn(models: Sequence[Model], args: argparse.Namespace) -> list[tuple[str, str]]:
    draw = random.Random(args.seed)
    weights = [1 / rank**args.skew for rank in range(1, len(models) + 1)]
    chosen = draw.choices([model.name for model in models], weights, k=args.requests)
    return [(name, draw.choice(PROMPTS)) for name in chosen]


def soak(
    server: Server,
    requests: Sequence[tuple[str, str]],
    said: dict[tuple[str, str], str],
    clients: int,
) -> Seen:
    seen, over = Seen(), threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            seen.most_bytes = max(seen.most_bytes, server.model_bytes)

    def one(request: tuple[str, str]) -> None:
        began = time.monotonic()
        try:
            text = server.text(*request)
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            seen.wrong.append(f"{request}: {error!r}")
            return
        seen.seconds.setdefault(request[0], []).append(time.monotonic() - began)
        if text != said[request]:
            seen.wrong.append(f"{request}: {text!r}, and alone {said[request]!r}")

    looking = threading.Thread(target=look)
    looking.start()
    try:
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(one, requests))
    finally:
        over.set()
        looking.join()
    return seen


def total(metrics: str, name: str) -> int:
    lines = (line for line in metrics.splitlines() if line.startswith(f"penstock:{name}_total{{"))
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Model.parse, metavar="NAME=MODEL[:OPTIONS]")
    parser.add_argument("--memory", type=parse_size, required=True)
    parser.add_argument("--kv-cache-bytes", type=parse_size, default=64 << 20)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--skew", type=float, default=1.1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    options = ("--kv-cache-bytes", str(args.kv_cache_bytes))
    said = alone(args.models, options)
    requests = drawn(args.models, args)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "models.toml")
        path.write_text(catalogue(args.models))
        words = ("--models", str(path), "--models-memory", str(args.memory), *options)
        with serving(*words) as server:
            began = time.monotonic()
            seen = soak(server, requests, said, args.clients)
            seconds = time.monotonic() - began
            _, metrics = server.ask("GET", "/metrics")
    for each in seen.wrong[:10]:
        print(each, file=sys.stderr)
    asked = Counter(name for name, _ in requests)
    report = {
        "requests": len(requests),
        "asked": {model.name: asked[model.name] for model in args.models},
        "wrong_or_lost": len(seen.wrong),
        "budget_bytes": args.memory,
        "most_bytes": seen.most_bytes,
        "loads": total(metrics, "model_loads"),
        "unloads": total(metrics, "model_unloads"),
        "load_failures": total(metrics, "model_load_failures"),
        "seconds": round(seconds, 1),
        "median_s": {n: round(statistics.median(each), 3) for n, each in seen.seconds.items()},
        "longest_s": {n: round(max(each), 2) for n, each in seen.seconds.items()},
    }
    print(json.dumps(report))
    return int(bool(seen.wrong) or not 0 < seen.most_bytes <= args.memory)


if __name__ == "__main__":
    sys.exit(main())
