"""Ray Serve's request router for replicas: it passes on who runs.

Ray copies this module's code to where a handle is, and takes what it imports from there: so the
directory is imported where it is used, and is that of the process.
"""

from __future__ import annotations

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class MembershipRouter(RequestRouter):  # type: ignore[misc]  # Ray's types are not read
    """Tells the directory of its process which replicas there are.

    Requests of clients do not pass here: see the package's docstring. What is asked by a handle all
    the same may go to any replica.
    """

    def initialize_state(self, deployment: str) -> None:
        """``deployment``: the name under which replicas are told."""
        self._deployment = deployment

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        from penstock.deploy.directory import DIRECTORY

        super().update_replicas(replicas)
        DIRECTORY.publish(self._deployment, [each.replica_metadata for each in replicas])

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        return [candidate_replicas]
