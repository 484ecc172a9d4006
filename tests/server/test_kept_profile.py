"""The profile that outlives the server's process."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import msgspec
import pytest
from support.needs import needs_native
from support.profiles import profile_of

from penstock.profile import Profile, ProfileOptions
from penstock.server.kept_profile import KeptProfile

pytestmark = needs_native


@pytest.fixture(scope="module")
def profile() -> Profile:
    return profile_of(ProfileOptions(max_num_seqs=3))


def made(profile: Profile, when: str) -> Profile:
    return msgspec.structs.replace(profile, made=when)


def in_a_child(work: Any) -> int:
    """Do ``work`` in a process that is forked; returns how that ended."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_there_is_none_at_first() -> None:
    assert KeptProfile().read() is None


def test_the_last_of_any_life_is_kept(profile: Profile) -> None:
    kept = KeptProfile()
    lives = [
        msgspec.structs.replace(profile, notes=("x" * length,)) for length in (5, 50_000, 1, 300)
    ]
    for each in lives:
        assert in_a_child(lambda each=each: kept.keep(each)) == 0
        assert kept.read() == each
    kept.keep(profile)
    kept.keep(lives[1])
    assert kept.read() == lives[1]


def test_a_life_that_is_killed_while_it_writes_leaves_the_former(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptProfile()
    for former in ("a", "b"):
        kept.keep(made(profile, former))

        def killed_halfway() -> None:
            real = os.pwrite

            def write(fd: int, data: bytes, at: int) -> int:
                real(fd, data[: len(data) // 2], at)
                os.kill(os.getpid(), signal.SIGKILL)
                raise AssertionError

            monkeypatch.setattr("penstock.server.kept_profile.os.pwrite", write)
            kept.keep(made(profile, "torn"))

        assert in_a_child(killed_halfway) == -signal.SIGKILL
        found = kept.read()
        assert found is not None
        assert found.made == former


def test_programs_that_the_server_starts_do_not_have_it() -> None:
    before = descriptors()
    kept = KeptProfile()
    (number,) = descriptors() - before
    assert not os.get_inheritable(number)
    assert kept.read() is None


def descriptors() -> set[int]:
    """Those of such memory."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            if "penstock-profile" in os.readlink(f"/proc/self/fd/{each}"):
                found.add(int(each))
    return found
