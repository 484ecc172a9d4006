"""aider: one message about one file, whole and streamed, by its command line."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import KEY, MODEL, URL, attempt

AIDER = Path(sys.executable).parent / "aider"
QUIET = "--no-git --yes-always --no-check-update --no-show-model-warnings --analytics-disable"


def one_message(stream: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.py").write_text("import os\n")
        command = [str(AIDER), "--model", f"openai/{MODEL}", *QUIET.split(), stream]
        command += ["--map-tokens", "0", "--message", "import os", "a.py"]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "HOME": folder, "OPENAI_API_BASE": URL, "OPENAI_API_KEY": KEY},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=300,
        )
    for sign in ("litellm.", "Traceback", "Error:"):
        assert sign not in done.stdout, done.stdout[-400:]
    assert done.returncode == 0, done.stdout[-400:]
    assert "Tokens:" in done.stdout or "token limit" in done.stdout, done.stdout[-400:]


attempt("one message", lambda: one_message("--no-stream"))
attempt("one message, streamed", lambda: one_message("--stream"))
