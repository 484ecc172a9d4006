"""``schemathesis`` against the server's own OpenAPI document."""

from __future__ import annotations

import json
from typing import Any

from client import Client, Figures, Job, Outcome
from fresh_server import ADMIN_KEY

UNTESTED = (
    "/admin/drain and /admin/resume, which take the server away from the other requests, and "
    "positive_data_acceptance: that prompt and output fit the context depends on tokens, "
    "which no schema can count"
)

_CONFIGURATION = f"""
[auth.openapi]
admin = {{ bearer = "{ADMIN_KEY}" }}

[generation]
# A header that a server does not know is none of its business.
allow-extra-parameters = false
"""


class Schemathesis(Client):
    name = "schemathesis"
    requirements = ("schemathesis",)
    reported = ("schemathesis", "hypothesis")
    serve = ("--max-model-len", "64")
    """128 sequences of the whole context are allowed, and take their time."""
    why_not_more = f"not tested: {UNTESTED}"

    def run(self, job: Job) -> Outcome:
        report = job.folder / "report.json"
        (job.folder / "schemathesis.toml").write_text(_CONFIGURATION)
        document = job.folder / "openapi.json"
        document.write_text(
            json.dumps(_without_deadlines(json.loads(job.server.get("/openapi.json"))))
        )
        job.call(
            "schemathesis",
            *(
                "run",
                str(document),
                "--url",
                job.server.url,
                "--max-examples",
                "5" if job.quick else "60",
            ),
            *("--phases", "fuzzing" if job.quick else "coverage,fuzzing"),
            *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
            *("--exclude-path-regex", "drain|resume", "--seed", "1", "--generation-deterministic"),
            *("--continue-on-failure", "--request-timeout", "60"),
            *("--report", "json", "--report-json-path", str(report)),
            may_fail=True,
        )
        found = json.loads(report.read_text())
        rows = [*map(_failure, found["failures"]), *map(_accepted, found["valid_rates"].items())]
        cases = found["test_cases"]
        rows.insert(
            0,
            {
                "what": "all operations",
                "cases": cases["generated"],
                "failed": cases["with_failures"],
                "errors": len(found["errors"]),
                "operations": found["operations"]["tested"],
            },
        )
        agrees = not found["failures"] and not found["errors"] and found["complete"]
        return Outcome(rows, agrees)


def _without_deadlines(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` without the header that sets a deadline: one of a microsecond is a 504."""
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["parameters"] = [
                each for each in operation["parameters"] if each["name"] != "x-request-timeout"
            ]
    return document


def _failure(group: dict[str, Any]) -> Figures:
    where = ", ".join(group["operations"])
    return {"what": f"{group['title']}: {where}", "failed": group["count"]}


def _accepted(item: tuple[str, Any]) -> Figures:
    """How many of the bodies that the document allows the server took."""
    operation, phases = item
    accepted = sum(rate["accepted"] for rate in phases.values())
    rejected = sum(rate["rejected"] for rate in phases.values())
    return {"what": operation, "valid": accepted + rejected, "accepted": accepted}
