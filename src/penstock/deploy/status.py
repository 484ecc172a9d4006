"""What Ray Serve says of a deployment, in the form in which it is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

_ERROR: Final = re.compile(r"^(?:\w+\.)*(?:StartError|ConfigError|PenstockError): (.*)$", re.M)


class ReplicaStatus(msgspec.Struct, frozen=True):
    id: str
    state: str
    """Ray's word, such as RUNNING."""
    host: str | None
    pid: int | None
    """The actor's process."""


class DeploymentStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str
    """Ray's word for the application, such as RUNNING or DEPLOY_FAILED."""
    error: str
    """Why it is not as it should be, in a line; empty where it is."""
    wanted: int
    """Replicas that there are to be now."""
    replicas: list[ReplicaStatus]
    routers: list[ReplicaStatus]

    @property
    def ready(self) -> int:
        return sum(replica.state == "RUNNING" for replica in self.replicas)


def deployment_status(
    name: str, application: Mapping[str, Any], replicas: str, ingress: str
) -> DeploymentStatus | None:
    """``application``: Ray Serve's details of it; None where it is no deployment of ours, which
    have deployments of the names ``replicas`` and ``ingress``."""
    deployments = application.get("deployments", {})
    if replicas not in deployments or ingress not in deployments:
        return None
    served = deployments[replicas]
    messages = [each.get("message", "") for each in (application, *deployments.values())]
    state = _word(application["status"])
    return DeploymentStatus(
        name=name,
        state=state,
        error=error_of(messages) if state not in ("RUNNING", "DELETING") else "",
        wanted=int(served.get("target_num_replicas", 0)),
        replicas=_replicas(served),
        routers=_replicas(deployments[ingress]),
    )


def error_of(messages: list[str]) -> str:
    """The error of ours in Ray's messages, which have whole tracebacks; else the last line of the
    first that says anything."""
    for message in messages:
        found = _ERROR.findall(message)
        if found:
            return str(found[-1])
    said = [message.strip() for message in messages if message.strip()]
    return said[0].splitlines()[-1] if said else ""


def _word(value: Any) -> str:
    """A member of one of Ray's enumerations, or its value."""
    return str(getattr(value, "value", value))


def _replicas(deployment: Mapping[str, Any]) -> list[ReplicaStatus]:
    return [
        ReplicaStatus(
            id=str(each["replica_id"]),
            state=_word(each["state"]),
            host=each.get("node_ip"),
            pid=each.get("pid"),
        )
        for each in deployment.get("replicas", [])
    ]
