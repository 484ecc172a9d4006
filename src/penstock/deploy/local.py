"""Ray on this machine alone: ``python -m penstock.deploy.local ADDRESS_FILE CPUS``.

Ray listens on loopback, and asks everybody for a token (``RAY_AUTH_TOKEN_PATH``). It lives as long
as this process, which ends on SIGTERM; if it is killed, the kernel ends Ray's processes with it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import ray


def main() -> None:
    file, cpus = Path(sys.argv[1]), float(sys.argv[2])
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    # Where each machine is its own Ray, its address is loopback's, and nothing listens elsewhere.
    context = ray.init(
        address="local",
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    written = file.with_suffix(".new")
    written.write_text(context.address_info["gcs_address"])
    os.replace(written, file)
    signal.sigwait((signal.SIGTERM, signal.SIGINT))
    ray.shutdown()


if __name__ == "__main__":
    main()
