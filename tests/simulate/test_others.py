"""What other processes and the host take of the machine, by the kernel's counts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.simulate import others
from penstock.simulate.others import Others

_LINUX = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the kernel tells no counts")
_SPIN = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass"


@_LINUX
def test_ones_own_children_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy child counts as one's own, while it runs and after its end."""
    before, own = Others.now(), others._own()
    with subprocess.Popen([sys.executable, "-c", _SPIN]) as child:
        while child.poll() is None and others._own() - own < 10:
            time.sleep(0.05)
        assert child.poll() is None  # so its time counts while it runs
        child.wait()
    mine = Others.now().since(before)
    spent = others._own() - own
    assert spent >= 50  # and after its end
    monkeypatch.setattr(others, "_own", lambda: own)
    assert Others.now().since(before).processes >= mine.processes + spent / 100 - 0.1


def test_counts_that_cannot_be_read_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_text(path: Path, *_: object) -> str:
        raise OSError

    monkeypatch.setattr(Path, "read_text", read_text)
    assert Others.now() == Others(0.0, 0.0)


def test_differences_and_rates() -> None:
    found = Others(3.0, 1.0).since(Others(1.0, 2.0))
    assert found == Others(2.0, 0.0)  # counts of a machine that was moved may go back
    assert found.each_second(4.0) == Others(0.5, 0.0)
