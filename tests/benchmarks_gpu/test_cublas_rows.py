from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from gpu import cublas_rows  # noqa: E402


def test_it_runs_where_there_is_no_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in cublas_rows._WORKSPACES:
        monkeypatch.setenv(name, "")  # put back afterwards
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cublas_rows, "ROWS", (1, 2, 17))
    code = cublas_rows.main([])
    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert figures[0]["workspaces"]["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    measured = [line for line in figures if "rows" in line]
    assert [line["rows"] for line in measured] == [1, 2, 17] * 2
    differ = sum(line["rows_that_differ"] for line in measured)
    assert figures[-1] == {"all_rows_equal": differ == 0}
    assert code == (1 if differ else 0)
    assert cublas_rows.main(["--minutes", "-1"]) == 1
    assert "the time was over" in capsys.readouterr().out
