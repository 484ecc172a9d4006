"""How fleets of ``penstock deploy`` on Ray end, grow and shrink."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator

import httpx
import pytest
from support.needs import require_ray
from support.ray_fleet import PATIENT_S, RayFleet, answer, ray_fleet
from support.waiting import PATIENCE_S, until

require_ray()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def fleet() -> Iterator[RayFleet]:
    """Nothing runs yet."""
    with ray_fleet() as found:
        yield found


def test_what_does_not_start_leaves_nothing(fleet: RayFleet) -> None:
    ran = fleet.deploy(fleet.file("model = '/nowhere'"))
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        "penstock: error: there is no folder /nowhere, and it is not a hub id (owner/name)"
    )
    until(lambda: not fleet.processes(), PATIENCE_S, "nothing that runs")
    for word in ("--status", "--down"):
        said = fleet.deploy(word)
        assert (said.returncode, said.stderr) == (1, "penstock: error: nothing is deployed\n")


def test_what_holds_ray_takes_all_with_it(fleet: RayFleet) -> None:
    """However it ends."""
    fleet.up(fleet.file())
    assert fleet.servers()
    held = int((fleet.folder / "state/penstock/ray/pid").read_text().split()[0])
    assert len(fleet.processes()) > 5
    os.kill(held, signal.SIGKILL)
    until(lambda: not fleet.processes(), PATIENCE_S, "nothing that runs")
    assert fleet.deploy("--status").stderr == "penstock: error: nothing is deployed\n"
    # The files that it has left are in nobody's way.
    fleet.up(fleet.file())
    assert fleet.servers()


def test_an_interrupted_command_says_what_goes_on(fleet: RayFleet) -> None:
    command = fleet.command(fleet.file(replicas="memory = '100Ti'"))
    with subprocess.Popen(
        command, env=fleet.environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "have taken more than 30s to be scheduled" in line:
                process.send_signal(signal.SIGINT)
        assert process.wait() == 130, said
    # Each state is said once, and the reason is Ray's.
    assert said[:2] == ["starting Ray on this machine\n", "fleet: deploying, 0 of 1 replicas\n"]
    assert len(said) == 4
    assert said[-1].startswith("this command ends, and Ray goes on: 'penstock deploy --status'")
    assert fleet.deploy("--status").stdout.startswith("fleet: deploying, 0 of 1 replicas: ")
    assert fleet.deploy("--down").returncode == 0
    assert not fleet.processes()


def test_replicas_come_when_they_are_needed_and_go_again(fleet: RayFleet) -> None:
    """There is none, one for a first request, two, and none again; then it is taken down."""
    scaling = "sequences = 1\nup-after = 1\ndown-after = 4"
    fleet.up(fleet.file(replicas="min = 0\nmax = 2", autoscaling=scaling))
    until(lambda: not fleet.servers(), PATIENT_S, "no server")
    with httpx.Client(base_url=fleet.url, timeout=PATIENT_S, trust_env=False) as client:
        first = answer(client, "grammar")
        done, troubles = threading.Event(), list[str]()

        def ask() -> None:
            while not done.is_set():
                try:
                    assert answer(client, "grammar") == first
                except (httpx.HTTPError, AssertionError) as error:
                    troubles.append(repr(error))
                    return

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            until(lambda: len(fleet.servers()) == 2 or troubles, PATIENT_S, "two servers")
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert troubles == []
        until(lambda: not fleet.servers(), PATIENT_S, "no server")
    assert fleet.deploy("--down").returncode == 0
    assert not fleet.processes()


def test_down_lets_open_streams_end_and_leaves_nothing(fleet: RayFleet) -> None:
    fleet.up(fleet.file())
    ended, cut = list[str](), list[str]()
    body = {"prompt": "x", "stream": True, "max_tokens": 1500, "ignore_eos": True}

    def ask() -> None:
        """Ask until nobody takes a request any more; what has begun has to end well."""
        with httpx.Client(base_url=fleet.url, timeout=PATIENCE_S, trust_env=False) as client:
            while True:
                last = ""
                try:
                    with client.stream("POST", "/v1/completions", json=body) as response:
                        if response.status_code != 200:
                            return
                        for line in response.iter_lines():
                            last = line or last
                except httpx.HTTPError as error:
                    if last:
                        cut.append(f"{error!r} after {last}")
                    return
                (ended if last == "data: [DONE]" else cut).append(last)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: ended or cut, PATIENCE_S, "an answer")
    down = fleet.deploy("--down")
    for thread in threads:
        thread.join()
    assert down.returncode == 0, down.stderr
    assert cut == []
    assert not fleet.processes()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", fleet.port)) != 0
    assert fleet.deploy("--status").returncode == 1
