"""``penstock deploy`` on Ray: a fleet of two servers with the demo model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import httpx
import pytest
from support.killed_streams import asked_by, parts, streamed
from support.needs import require_ray
from support.ray_fleet import PATIENT_S, Askers, RayFleet, answer, ray_fleet
from support.waiting import PATIENCE_S, until

require_ray()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TWO = "min = 2\nsurge = 50"


@pytest.fixture(scope="module")
def fleet() -> Iterator[RayFleet]:
    """Runs as it is here after each test."""
    with ray_fleet() as found:
        printed = found.up(found.file(replicas=TWO))
        assert printed == (
            f"fleet serves at {found.url}/v1\n"  # the fleet is called so
            "fleet: running, 2 of 2 replicas\n"
        )
        yield found


@pytest.fixture
def client(fleet: RayFleet) -> Iterator[httpx.Client]:
    """A client of the fleet's router, which knows both servers and what their caches hold."""
    with httpx.Client(base_url=fleet.url, timeout=PATIENCE_S, trust_env=False) as found:
        until(lambda: len(fleet.servers()) == 2, PATIENT_S, "two servers")
        yield found


def alone(fleet: RayFleet, *kinds: str) -> dict[str, dict[object, object]]:
    """What one server says that is asked without the router."""
    url = fleet.servers()[0]["url"]
    with httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False) as one:
        return {kind: answer(one, kind) for kind in kinds}


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def test_a_stream_by_the_router_is_that_of_a_server(fleet: RayFleet, client: httpx.Client) -> None:
    for kind, expected in alone(fleet, "several", "grammar", "response").items():
        assert answer(client, kind) == expected
    answered = client.get("/v1/models")
    assert answered.json()["data"][0]["id"] == "penstock-demo"
    assert len(answered.headers.get_list("x-request-id")) == 1


def test_servers_are_as_the_configuration_says(fleet: RayFleet) -> None:
    for server in fleet.servers():
        # They give way to nobody, whatever Ray's processes do.
        assert os.getpriority(os.PRIO_PROCESS, server["pid"]) == os.getpriority(
            os.PRIO_PROCESS, os.getpid()
        )
        with open(f"/proc/{server['pid']}/cmdline", encoding="utf-8") as file:
            words = file.read().split("\0")
        assert {"--threads=1", "--kv-cache-bytes=32MiB", "--host=127.0.0.1"} <= set(words)
        # Nobody else may have its key.
        assert httpx.get(f"{server['url']}/admin/status", trust_env=False).status_code == 401


def test_the_status(fleet: RayFleet, client: httpx.Client) -> None:
    told = fleet.status
    assert (told["name"], told["state"], told["error"], told["wanted"]) == (
        *("fleet", "RUNNING", "", 2),
    )
    assert [each["state"] for each in told["replicas"]] == ["RUNNING", "RUNNING"]
    assert len(told["routers"]) == 1
    # The actor's process holds the server's.
    actors = {each["pid"] for each in told["replicas"]}
    assert {parent(server["pid"]) for server in fleet.servers()} == actors
    assert fleet.deploy("--status").stdout == "fleet: running, 2 of 2 replicas\n"
    named = fleet.deploy(fleet.file(name="another"), "--status")
    assert (named.returncode, named.stderr) == (
        *(1, "penstock: error: what is deployed is called fleet\n"),
    )


@pytest.mark.parametrize("kind", ["grammar", "tools"])
def test_a_stream_outlives_its_replica(kind: str, fleet: RayFleet, client: httpx.Client) -> None:
    expected = alone(fleet, kind)[kind]
    before = {server["pid"] for server in fleet.servers()}
    killed: list[int] = []

    def kill() -> None:
        """Kill the actor whose server answers."""
        busy = [server for server in fleet.servers() if server["decoding"]]
        if busy and not killed:
            killed.append(busy[0]["pid"])
            os.kill(parent(busy[0]["pid"]), signal.SIGKILL)

    path, body = asked_by(kind)
    lines = streamed(client, path, body, kill)
    assert killed, "the stream had ended"
    assert lines[-1] == "[DONE]", lines[-1]
    assert parts(path, lines) == expected

    def replaced() -> bool:
        now = {server["pid"] for server in fleet.servers()}
        return len(now) == 2 and not now & set(killed)

    until(replaced, PATIENT_S, "another replica")
    assert {server["pid"] for server in fleet.servers()} & before, "the other one went on"


def test_a_change_breaks_no_stream(fleet: RayFleet, client: httpx.Client) -> None:
    kinds = ("grammar", "tools")
    before = {server["pid"] for server in fleet.servers()}
    askers = Askers(fleet.url, kinds, alone(fleet, *kinds))
    with askers.asking():
        # Servers are made anew for the one, and the router for the other.
        fleet.up(fleet.file("revision = '2'", replicas=TWO, routing="access-log = false"))
        until(
            lambda: (
                len(found := {server["pid"] for server in fleet.servers()}) == 2
                and not found & before
            ),
            PATIENT_S,
            "new servers alone",
        )
        asked = askers.equal
        until(lambda: askers.equal > asked or askers.troubles, PATIENCE_S, "their answers")
    assert askers.troubles == []
    # What has not changed stays.
    after = {server["pid"] for server in fleet.servers()}
    fleet.up(fleet.file("revision = '2'", replicas=TWO, routing="access-log = false"))
    assert {server["pid"] for server in fleet.servers()} == after


def test_what_does_not_start_ends_nothing(fleet: RayFleet, client: httpx.Client) -> None:
    before = {server["pid"] for server in fleet.servers()}
    ran = fleet.deploy(fleet.file("model = '/nowhere'", replicas=TWO))
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        "penstock: error: there is no folder /nowhere, and it is not a hub id (owner/name); the "
        "replicas that were there before go on"
    )
    assert before & {server["pid"] for server in fleet.servers()}
    assert answer(client, "greedy")
    fleet.up(fleet.file("revision = '3'", replicas=TWO))
    assert fleet.deploy("--status").stdout == "fleet: running, 2 of 2 replicas\n"


def test_what_is_in_the_way(fleet: RayFleet) -> None:
    other = fleet.deploy(fleet.file(name="other"))
    assert other.returncode == 2
    assert "'fleet' is deployed there already; take it down first" in other.stderr
    path = fleet.file(replicas=TWO)
    path.write_text(path.read_text().replace(str(fleet.port), "9"))
    elsewhere = fleet.deploy(path)
    assert elsewhere.returncode == 2
    assert f"routing.port: Ray Serve listens on 127.0.0.1:{fleet.port}" in elsewhere.stderr
    assert fleet.deploy("--status").stdout == "fleet: running, 2 of 2 replicas\n"
