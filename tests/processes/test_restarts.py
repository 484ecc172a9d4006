"""How long to wait before what has died is started again."""

from __future__ import annotations

from penstock.processes.restarts import RestartPolicy


def test_pauses_double_up_to_their_limit() -> None:
    policy = RestartPolicy(max_restarts=10**6, backoff_s=0.5, max_backoff_s=3.0)
    assert [policy.pause(n) for n in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert policy.pause(10**6) == 3.0


def test_what_dies_too_often_is_given_up() -> None:
    policy = RestartPolicy(max_restarts=2)
    assert [policy.pause(n) is None for n in range(1, 5)] == [False, False, True, True]
    assert RestartPolicy(max_restarts=0).pause(1) is None
