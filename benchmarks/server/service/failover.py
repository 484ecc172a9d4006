"""Streams while their servers are killed: each must end with the bits that it would have had.

Before, one server that nobody kills answers every question once. Then clients ask them over and
over through whatever is before the fleet, and a process of the fleet is killed now and then.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import re
import signal
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from service.fleets import Fleet
from service.process import HOST, serving
from service.questions import Question, Told, questions

ANSWER_S = 300.0
"""A stream that says nothing for so long hangs."""
LISTED = 20
_REST_S = 0.1


class Options(msgspec.Struct, frozen=True):
    minutes: float
    every_s: float
    """Seconds from one kill to the next."""
    clients: int
    pause_s: float
    """Seconds that a client rests between two streams."""
    seeds: int
    """Seeds that each kind of question is asked with, besides once greedily."""
    tokens: int
    seed: int = 0


class Failover(msgspec.Struct, frozen=True, kw_only=True):
    options: Options
    seconds: float
    questions: int
    kills: dict[str, int]
    streams: int
    without_victim: int
    """Times at which every server was gone already, so that none was killed."""
    open_at_kills: int
    """The sum over kills of the streams that were open."""
    resumed: int
    """Streams that another server continued, by the router's count, once for each time."""
    equal: int
    """Streams that ended with the same bits as on the server that nobody killed."""
    different: int
    failed: int
    """Streams that were refused, or ended before their end."""
    troubles: list[str]
    ok: bool


class Clients:
    """Threads that ask, and judge what they are told."""

    def __init__(self, url: str, expected: dict[str, Told], asked: Sequence[Question]) -> None:
        self._address = urlsplit(url).netloc
        self._expected = expected
        self._asked = asked
        self._lock = threading.Lock()
        self.limit: int | None = None
        """How many of them ask; None: all."""
        self.open = 0
        self.counts: Counter[str] = Counter()
        self.troubles: list[str] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, options: Options) -> None:
        """Begin to ask."""
        for number in range(options.clients):
            draw = random.Random(f"{options.seed} {number}")
            thread = threading.Thread(target=self._run, args=(number, draw, options.pause_s))
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Ask nothing more, and wait for what is open."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int, draw: random.Random, pause_s: float) -> None:
        while not self._stop.is_set():
            if self.limit is not None and number >= self.limit:
                self._stop.wait(_REST_S)
                continue
            question = draw.choice(self._asked)
            with self._lock:
                self.open += 1
            outcome, trouble = self._judged(question)
            with self._lock:
                self.open -= 1
                self.counts[outcome] += 1
                if trouble and len(self.troubles) < LISTED:
                    self.troubles.append(f"{question.name}: {trouble}"[:3000])
            self._stop.wait(draw.uniform(0, 2 * pause_s))

    def _judged(self, question: Question) -> tuple[str, str]:
        try:
            told = ask(self._address, question)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            return "failed", f"{type(error).__name__}: {error}"
        if told.error is not None or not told.done:
            return "failed", told.error or "the stream ended before its end"
        expected = self._expected[question.name]
        if told.parts == expected.parts:
            return "equal", ""
        return "different", first_difference(told, expected)


def ask(address: str, question: Question) -> Told:
    """One stream. Raises OSError, HTTPException or ValueError where it is no good one."""
    connection = http.client.HTTPConnection(address, timeout=ANSWER_S)
    try:
        body = msgspec.json.encode(question.body)
        headers = {"content-type": "application/json"}
        connection.request("POST", question.path, body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {response.read()[:500]!r}")
        told = Told()
        for line in response:
            if line.startswith(b"data: "):
                told.take(line.removeprefix(b"data: ").rstrip(b"\n"))
        return told
    finally:
        connection.close()


def first_difference(told: Told, expected: Told) -> str:
    for path in {**expected.parts, **told.parts}:
        mine, theirs = told.parts.get(path), expected.parts.get(path)
        if mine != theirs:
            return f"{path} is {mine!r}, not {theirs!r}"
    return "nothing"


def alone(words: Sequence[str], options: Options) -> tuple[list[Question], dict[str, Told]]:
    """The questions, and what a server that nobody kills says to each. Raises RuntimeError where it
    does not answer one."""
    with serving(words) as served:
        asked = questions(served.model, options.seeds, options.tokens)
        expected = {each.name: ask(f"{HOST}:{served.port}", each) for each in asked}
    for name, told in expected.items():
        if told.error is not None or not told.done:
            raise RuntimeError(f"{name}: {told.error or 'no end'}")
    return asked, expected


def resumed_streams(url: str) -> int:
    """The number that the router's metrics tell."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=60).read().decode()
    found = re.findall(r"^penstock_router:resumed_streams_total\{.*\} (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, found)))


def measure(fleet: Fleet, words: Sequence[str], options: Options) -> Failover:
    """Kill ``fleet``, whose servers have the options ``words``. Raises RuntimeError if nothing can
    be measured."""
    print("one server, which nobody kills", file=sys.stderr)
    asked, expected = alone(words, options)
    clients = Clients(fleet.url, expected, asked)
    draw = random.Random(options.seed)
    kills: Counter[str] = Counter()
    open_at_kills = without_victim = 0
    began = time.monotonic()
    before = resumed_streams(fleet.url)
    clients.start(options)
    try:
        for number in range(1, int(options.minutes * 60 / options.every_s)):
            victims = fleet.victims()  # before it is time, since to ask may take a while
            time.sleep(max(0.0, began + number * options.every_s - time.monotonic()))
            if not victims:
                without_victim += 1
                continue
            kind, pid = draw.choice(victims)
            open_at_kills += clients.open
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills[kind] += 1
            fleet.restore(pid)
            print(
                f"  {time.monotonic() - began:.0f} s: {kills.total()} kills, "
                f"{dict(clients.counts)}, {resumed_streams(fleet.url) - before} resumed",
                file=sys.stderr,
            )
        time.sleep(options.every_s)
    finally:
        clients.stop()
    counts = clients.counts
    return Failover(
        options=options,
        seconds=round(time.monotonic() - began, 1),
        questions=len(asked),
        kills=dict(kills),
        streams=counts.total(),
        without_victim=without_victim,
        open_at_kills=open_at_kills,
        resumed=resumed_streams(fleet.url) - before,
        equal=counts["equal"],
        different=counts["different"],
        failed=counts["failed"],
        troubles=clients.troubles,
        ok=not clients.troubles and counts["equal"] > 0 and kills.total() > 0,
    )
