"""What HTTP and the way to the engine's process cost, against the engine in one process.

Both do exactly the same work in turn, on the same cores and with the same options: so many prompts
of random tokens, each continued by the same number of tokens, all at once. The texts are compared.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

import msgspec

from penstock.bench.processes import cpu_seconds
from service import canned, offline
from service.client import Clients, Reply, Said, post, read
from service.process import Served, environment, serving

VOCABULARY = 4096


class Workload(msgspec.Struct, frozen=True):
    streams: int
    prompt: int
    """Tokens of each prompt."""
    output: int
    rounds: int
    threads: int


class OfflineRun(msgspec.Struct, frozen=True):
    seconds: float
    cpu_seconds: float


class HttpRun(msgspec.Struct, frozen=True):
    seconds: float
    """Seconds from the first request to the last byte of the last answer."""
    engine_cpu_seconds: float
    front_cpu_seconds: float
    """CPU seconds of the process that speaks HTTP."""
    client_cpu_seconds: float
    events: int
    """That had text, of all streams."""
    receives: int
    """Pieces in which the clients got the bytes."""


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Best and median over rounds; a cost is 1 - (tokens/s over HTTP) / (tokens/s offline)."""

    workload: Workload
    offline: list[OfflineRun]
    http: list[HttpRun]
    offline_tokens_per_s: float
    http_tokens_per_s: float
    cost_of_best: float
    """Return the overhead between the fastest round of each."""
    cost_median: float
    """Median over rounds of the cost within one round."""
    cost_by_processor_time: float
    """1 - offline / (engine + front), of the medians: what it would be were no core ever idle."""
    client_share: float
    """The clients' processor time over the engine's and the front's, median; part of the cost."""
    cost_without_clients: float
    """``cost_median`` with the cores' time that the clients took given back."""
    canned_client_us: float
    """The clients' processor time for one piece that a recorded server sent."""
    tokens_per_event: float


def measure(workload: Workload, report: bool = True) -> Overhead:
    """Raises RuntimeError if a stream breaks or the two do not say the same."""
    options = {"threads": workload.threads, "max_num_seqs": workload.streams}
    flags = ["--threads", str(workload.threads), "--max-num-seqs", str(workload.streams)]
    generator = random.Random(0)
    alone: list[OfflineRun] = []
    served: list[HttpRun] = []
    replies: list[Reply] = []
    with (
        offline_engine(options) as engine,
        serving([*flags, "--no-access-log"]) as server,
    ):
        for number in range(workload.rounds + 1):
            prompts = [
                [generator.randrange(VOCABULARY) for _ in range(workload.prompt)]
                for _ in range(workload.streams)
            ]
            done = engine.run(offline.Work(prompts, workload.output))
            run, replies, said = over_http(server, prompts, workload.output)
            check(done, said, workload)
            if number == 0:
                continue  # both have met each length of a step
            alone.append(OfflineRun(done.seconds, done.cpu_seconds))
            served.append(run)
            if report:
                print(
                    f"  round {number}: offline {done.seconds:.2f} s, http {run.seconds:.2f} s",
                    file=sys.stderr,
                )
    tokens = workload.streams * workload.output
    return summary(workload, alone, served, tokens, client_alone(replies))


def over_http(
    server: Served, prompts: Sequence[Sequence[int]], output: int
) -> tuple[HttpRun, list[Reply], list[Said]]:
    requests = [post(server.model, prompt, output) for prompt in prompts]
    engine_pid = server.engine_pid
    clients = Clients(server.port, len(prompts))
    engine, front = cpu_seconds(engine_pid), cpu_seconds(server.pid)
    own, began = time.process_time(), time.monotonic()
    replies = clients.run(requests)
    seconds, own = time.monotonic() - began, time.process_time() - own
    front, engine = cpu_seconds(server.pid) - front, cpu_seconds(engine_pid) - engine
    clients.close()
    said = [read(reply) for reply in replies]
    events, receives = sum(s.events for s in said), sum(len(r.pieces) for r in replies)
    return HttpRun(seconds, engine, front, own, events, receives), replies, said


def check(done: offline.Done, said: Sequence[Said], workload: Workload) -> None:
    tokens = sum(each.tokens for each in said)
    if not done.tokens == tokens == workload.streams * workload.output:
        raise RuntimeError(f"{done.tokens} tokens offline, {tokens} over HTTP")
    if done.texts != [each.text for each in said]:
        raise RuntimeError("the texts over HTTP differ from those of the offline engine")


def summary(
    workload: Workload,
    alone: list[OfflineRun],
    served: list[HttpRun],
    tokens: int,
    canned_client_s: float,
) -> Overhead:
    cores = workload.threads
    offline_cpu = median(run.cpu_seconds for run in alone)
    http_cpu = median(run.engine_cpu_seconds + run.front_cpu_seconds for run in served)
    pairs = list(zip(alone, served, strict=True))
    return Overhead(
        workload=workload,
        offline=alone,
        http=served,
        offline_tokens_per_s=tokens / min(run.seconds for run in alone),
        http_tokens_per_s=tokens / min(run.seconds for run in served),
        cost_of_best=1 - min(a.seconds for a in alone) / min(h.seconds for h in served),
        cost_median=median(1 - a.seconds / h.seconds for a, h in pairs),
        cost_by_processor_time=1 - offline_cpu / http_cpu,
        client_share=median(
            h.client_cpu_seconds / (h.engine_cpu_seconds + h.front_cpu_seconds) for h in served
        ),
        cost_without_clients=median(
            1 - a.seconds / (h.seconds - h.client_cpu_seconds / cores) for a, h in pairs
        ),
        canned_client_us=canned_client_s * 1e6,
        tokens_per_event=tokens / median(run.events for run in served),
    )


def client_alone(replies: list[Reply]) -> float:
    """The clients' processor time for a piece of what a recorded server sends, in seconds."""
    with subprocess.Popen(
        [sys.executable, "-m", "service.canned"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(canned.record(replies)) + b"\n")
        process.stdin.flush()
        clients = Clients(int(process.stdout.readline()), len(replies))
        own = time.process_time()
        again = clients.run([b"GET / HTTP/1.1\r\n\r\n"] * len(replies))
        own = time.process_time() - own
        clients.close()
    return own / sum(len(reply.pieces) for reply in again)


class OfflineEngine:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def run(self, work: offline.Work) -> offline.Done:
        return msgspec.json.decode(self._asked(work), type=offline.Done)

    def _asked(self, message: msgspec.Struct) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the offline engine ended with code {self._process.wait()}")
        return line


@contextmanager
def offline_engine(options: Mapping[str, int]) -> Iterator[OfflineEngine]:
    process = subprocess.Popen(
        [sys.executable, "-m", "service.offline"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    try:
        engine = OfflineEngine(process)
        engine._asked(offline.Load(dict(options)))
        yield engine
    finally:
        process.kill()
        process.wait()
