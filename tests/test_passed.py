"""``.ci/passed``: what has passed on the same sources need not pass again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.needs import REPOSITORY, Need

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason=Need.PROGRAM.reason("git"))


class Checkout:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "native" / "a.cpp"
        (root / ".ci").mkdir(parents=True)
        self.source.parent.mkdir()
        shutil.copy(REPOSITORY / ".ci/passed", root / ".ci")
        self.git("init", "--quiet")
        self.write("one")

    def git(self, *words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *words], cwd=self.root, check=True)

    def write(self, text: str) -> None:
        self.source.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", text)

    def passed(self, *words: str, besides: str = "") -> bool:
        command = [self.root / ".ci/passed", *words, "check", "native"]
        environment = {"BESIDES": besides, "PATH": "/usr/bin:/bin"}
        return subprocess.run(command, cwd=self.root, env=environment).returncode == 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "repository")


def test_only_the_same_sources_have_passed(checkout: Checkout) -> None:
    assert not checkout.passed()
    assert checkout.passed("--record")
    assert checkout.passed()
    (checkout.root / "else.txt").write_text("")
    checkout.write("two")
    assert not checkout.passed()
    checkout.write("one")
    assert checkout.passed()


def test_what_it_depends_on_besides_counts(checkout: Checkout) -> None:
    assert checkout.passed("--record", besides="1.0")
    assert checkout.passed(besides="1.0")
    assert not checkout.passed(besides="2.0")
    assert checkout.passed("--record", besides="2.0")
    assert not checkout.passed(besides="1.0"), "one record of a kind of machine is kept"


def test_what_is_not_committed_has_not_passed(checkout: Checkout) -> None:
    assert checkout.passed("--record")
    checkout.source.write_text("two")
    assert not checkout.passed()
    assert not checkout.passed("--record")
    checkout.write("two")
    assert not checkout.passed()


def test_nothing_passes_outside_a_repository(checkout: Checkout) -> None:
    assert checkout.passed("--record")
    shutil.rmtree(checkout.root / ".git")
    assert not checkout.passed()
