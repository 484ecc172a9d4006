"""Which module imports which: the contracts of pyproject.toml, and no cycles.

Imports for type checkers count, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

CONTRACTS = Path(__file__).parent.parent / "pyproject.toml"


def test_contracts_are_kept() -> None:
    # In a process of its own: it configures logging for the whole process, which silences the
    # loggers that there are.
    code = (
        "import sys; from importlinter import cli; "
        f"sys.exit(cli.lint_imports(config_filename={str(CONTRACTS)!r}, no_cache=True))"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("penstock", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        # Given as what is imported, followed by who imports it.
        pytest.fail(" imports ".join(reversed(error.args[1])))
