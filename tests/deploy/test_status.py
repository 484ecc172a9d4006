"""What is made of Ray's words."""

from __future__ import annotations

from penstock.deploy.status import deployment_status, error_of

TRACEBACK = """The deployment failed to start 2 times in a row. Error:
ray::ServeReplica:auto:replicas.initialize_and_get_metadata()
  File "replica.py", line 42, in __init__
penstock.deploy.server_process.StartError: there is no folder /nowhere
Another line.
"""


def test_an_error_of_ours_is_found_in_a_traceback() -> None:
    assert error_of(["", TRACEBACK]) == "there is no folder /nowhere"
    assert error_of(["one\ntwo\n", ""]) == "two"
    assert error_of(["", " "]) == ""


def test_a_deployment() -> None:
    replica = {"replica_id": "a", "state": "RUNNING", "node_ip": "10.0.0.1", "pid": 7}
    starting = {**replica, "replica_id": "b", "state": "STARTING", "pid": None}
    application = {
        "status": "DEPLOYING",
        "message": TRACEBACK,
        "deployments": {
            "replicas": {"replicas": [replica, starting], "target_num_replicas": 2},
            "ingress": {"replicas": []},
        },
    }
    status = deployment_status("auto", application, "replicas", "ingress")
    assert status is not None
    assert (status.ready, status.wanted) == (1, 2)
    assert status.error == "there is no folder /nowhere"
    running = {**application, "status": "RUNNING"}
    status = deployment_status("auto", running, "replicas", "ingress")
    assert status is not None
    assert status.error == ""
    assert deployment_status("x", {"status": "RUNNING"}, "replicas", "ingress") is None
