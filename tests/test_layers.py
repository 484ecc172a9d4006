"""Which module imports which: the contracts of pyproject.toml, and no cycles.

Imports for type checkers count, too.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
from importlinter import cli

CONTRACTS = Path(__file__).parent.parent / "pyproject.toml"


def test_contracts_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.lint_imports(config_filename=str(CONTRACTS), no_cache=True)
    assert status == cli.EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("penstock", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        # Given as what is imported, followed by who imports it.
        pytest.fail(" imports ".join(reversed(error.args[1])))
