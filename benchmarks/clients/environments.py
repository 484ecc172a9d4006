"""An environment for each client: none of them meets another's dependencies, or ours."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class SetupError(Exception):
    """A client cannot be installed here; the message says why."""


@dataclass(frozen=True)
class Environment:
    folder: Path
    npm: bool = False
    """Whether it holds packages of npm, for the machine's node; else it is a virtual one of
    Python's."""

    @classmethod
    def create(
        cls, folder: Path, requirements: Sequence[str], log: Path, npm: bool = False
    ) -> Environment:
        """Install ``requirements`` unless ``folder`` has them from before. Raises SetupError."""
        environment = cls(folder, npm)
        done = folder / "requirements.json"
        if done.exists() and json.loads(done.read_text()) == list(requirements):
            return environment
        if npm:
            folder.mkdir(parents=True, exist_ok=True)
            install = [str(environment.program("npm")), "install", "--prefix", str(folder)]
            _run([*install, *requirements], log)
            done.write_text(json.dumps(list(requirements)))
            return environment
        if not environment.program("python").exists():
            _run([sys.executable, "-m", "venv", str(folder)], log)
        pip = [str(environment.program("python")), "-m", "pip", "install", "-q", *requirements]
        _run(pip, log)
        done.write_text(json.dumps(list(requirements)))
        return environment

    def program(self, name: str) -> Path:
        if self.npm:
            found = shutil.which(name)
            if found is None:
                raise SetupError(f"{name} is not installed")
            return Path(found)
        return self.folder / "bin" / name

    def versions(self, packages: Sequence[str]) -> dict[str, str]:
        if self.npm:
            node = [str(self.program("node")), "--version"]
            return {
                "node": subprocess.check_output(node, text=True).strip().removeprefix("v"),
                **{package: self._npm_version(package) for package in packages},
            }
        code = (
            "import json,sys; from importlib.metadata import version; "
            "print(json.dumps({p: version(p) for p in sys.argv[1:]}))"
        )
        command = [str(self.program("python")), "-c", code, *packages]
        found: dict[str, str] = json.loads(subprocess.check_output(command))
        return found

    def _npm_version(self, package: str) -> str:
        file = self.folder / "node_modules" / package / "package.json"
        version: str = json.loads(file.read_text())["version"]
        return version


def _run(command: Sequence[str], log: Path) -> None:
    with log.open("ab") as file:
        code = subprocess.call(command, stdout=file, stderr=subprocess.STDOUT)
    if code:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise SetupError(
            f"{' '.join(command[1:4])} ended with {code}: {lines[-1] if lines else ''}"
        )
