"""What is reported of a machine names no folder of it."""

from __future__ import annotations

from penstock.bench.redact import redacted_command, without_folders


def test_no_folder_is_reported() -> None:
    assert without_folders("see /home/me/a b.txt, ~/x/y and C:\\Users\\me\\z") == (
        "see a b.txt, y and z"
    )
    assert without_folders("bf16/int8, 1/2 and https://a.org/b/c") == (
        "bf16/int8, 1/2 and https://a.org/b/c"
    )
    command = redacted_command(
        "benchmarks/gpu.py", ["--quick", "--stories=/data/m/stories", "/x/y"]
    )
    assert command == "python benchmarks/gpu.py --quick --stories=stories y"
