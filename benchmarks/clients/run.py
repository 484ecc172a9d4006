"""Drives ``penstock serve`` by clients that others wrote, each in an environment of its own."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from client import Client, ClientError, Figures, Job
from environments import Environment, SetupError
from fresh_server import MODEL, serving
from lm_eval_run import LmEval
from load import AiPerf, GuideLlm
from machine import described_machine
from schemathesis_run import Schemathesis
from sdk_run import SDKS
from tools_tokenizer import tools_tokenizer

from penstock import __version__, demo_model_path

CLIENTS: Sequence[Client] = (Schemathesis(), LmEval(), GuideLlm(), AiPerf(), *SDKS)
NOT_RUN = "not run"


def main() -> int:
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = [c for c in CLIENTS if options.only is None or c.name in options.only.split(",")]
    good = True
    for client in chosen:
        result = _run(client, options)
        good &= result["verdict"] == "agrees"
        (options.out / f"{client.name}.json").write_text(json.dumps(result, indent=1) + "\n")
        text = _markdown(result)
        (options.out / f"{client.name}.md").write_text(text)
        print(text, flush=True)
    return 0 if good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ",".join(client.name for client in CLIENTS)
    parser.add_argument("--only", metavar="NAMES", help=f"of {names}, separated by commas")
    parser.add_argument("--quick", action="store_true", help="fewer cases and fewer streams")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one command")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "penstock-clients",
        help="for environments, which are kept, and what clients write (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="for the results"
    )
    options = parser.parse_args()
    unknown = set((options.only or names).split(",")) - set(names.split(","))
    if unknown:
        parser.error(f"no such client: {', '.join(sorted(unknown))}; there are {names}")
    return options


def _run(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {
        "client": client.name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": "python benchmarks/clients/run.py " + _arguments(client, options),
        "machine": described_machine(),
        "penstock": __version__,
        "penstock's options": " ".join(client.serve),
        "without a network": client.why_not_more,
    }
    work: Path = options.work
    folder = Path(tempfile.mkdtemp(prefix=f"{client.name}-", dir=work))
    try:
        log = work / f"{client.name}-setup.log"
        environment = Environment.create(
            work / "env" / client.name, client.requirements, log, client.npm
        )
        options_of_server = ["--no-access-log", *client.serve]
        if client.tools:
            options_of_server += ["--tokenizer", str(tools_tokenizer(folder / "tokenizer"))]
        result["versions"] = environment.versions(client.reported)
        with serving(folder / "server.log", *options_of_server) as server:
            job = Job(
                environment,
                server,
                MODEL,
                demo_model_path(),
                folder,
                options.quick,
                options.timeout,
            )
            result["client's commands"] = job.commands
            began = time.monotonic()
            outcome = client.run(job)
            result["seconds"] = round(time.monotonic() - began, 1)
            result["rows"] = outcome.rows
            result["sound afterwards"] = server.sound()
        good = outcome.agrees and result["sound afterwards"]
        result["verdict"] = "agrees" if good else "differs"
    except (SetupError, ClientError) as error:
        result["verdict"] = f"{NOT_RUN}: {error}"
    return result


def _arguments(client: Client, options: argparse.Namespace) -> str:
    return f"--only {client.name}" + (" --quick" if options.quick else "")


def _markdown(result: dict[str, Any]) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {v}" for name, v in result.get("versions", {}).items())
    lines = [
        f"# {result['client']}: {result['verdict']}",
        "",
        f"{result['date']}, Penstock {result['penstock']}, {versions or 'not installed'}. "
        f"{machine['processor']}, {machine['cores']} cores, load average "
        f"{', '.join(map(str, machine['load average']))} before.",
        "",
        f"`{result['command']}`; {result['without a network']}.",
        "",
    ]
    lines += [f"    {command}" for command in result.get("client's commands", ())]
    return "\n".join([*lines, "", *_table(result.get("rows", []))]) + "\n"


def _table(rows: Sequence[Figures]) -> list[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        return []
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(_cell(row.get(name, "")) for name in columns) + " |")
    return lines


def _cell(value: str | float | int) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
