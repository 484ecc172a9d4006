"""What a client is given, and what it hands back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from environments import Environment
from fresh_server import Served

Figures = dict[str, str | float | int]
"""One row of a table, by column."""

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Nothing may hang on a network that is not there."""


class ClientError(Exception):
    """A client did not do what it was asked; the message is for the report."""


@dataclass(frozen=True)
class Outcome:
    rows: list[Figures]
    agrees: bool
    """Whether all is as it should be: nothing failed, and both sides tell the same."""


@dataclass(frozen=True)
class Job:
    """One run of one client against a fresh server."""

    environment: Environment
    server: Served
    model: str
    tokenizer: Path
    folder: Path
    """Empty at first, for whatever the client writes."""
    quick: bool
    timeout_s: float
    commands: list[str] = field(default_factory=list)
    """What was run, without paths of this machine."""

    def call(
        self, program: str, *arguments: str, may_fail: bool = False, offline: bool = True
    ) -> str:
        """Run a program of the client's environment; its output. Raises ClientError."""
        self.commands.append(self.plain(" ".join((program, *arguments))))
        command = [str(self.environment.program(program)), *arguments]
        environment: Mapping[str, str] = {
            **os.environ,
            **(OFFLINE if offline else {}),
            "COLUMNS": "200",
        }
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=self.timeout_s,
                cwd=self.folder,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            raise ClientError(f"{program} did not end within {self.timeout_s:g} s") from None
        with (self.folder / "output.log").open("a") as file:
            file.write(done.stdout)
        if done.returncode and not may_fail:
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            last = self.plain(lines[-1]) if lines else "nothing was said"
            raise ClientError(f"{program} ended with {done.returncode}: {last[:300]}")
        return done.stdout

    def plain(self, text: str) -> str:
        """``text`` with this machine's paths and ports by their names."""
        for value, name in (
            (str(self.folder), "OUT"),
            (str(self.environment.folder), "ENVIRONMENT"),
            (str(Path(__file__).parent), "."),
            (str(self.tokenizer), "TOKENIZER"),
            (self.server.url, "URL"),
            (self.server.url.removeprefix("http://"), "HOST"),
        ):
            text = text.replace(value, name)
        return text


class Client(Protocol):
    name: str
    requirements: tuple[str, ...]
    """Requirement lines for pip."""
    reported: tuple[str, ...]
    """Packages whose versions the results tell."""
    serve: tuple[str, ...] = ()
    """Options of ``penstock serve``."""
    npm: bool = False
    """Whether the requirements are npm's."""
    tools: bool = False
    """Whether the demo model gets a chat template that shows tools to it."""
    why_not_more: str
    """What could not be run without a network, and why."""

    def run(self, job: Job) -> Outcome: ...
