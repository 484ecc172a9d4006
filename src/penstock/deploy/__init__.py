"""``penstock deploy``: a fleet of servers that Ray Serve places, watches, scales and replaces.

    clients ──▶ Ray Serve's proxies ──▶ Ingress (ingress.py): ``router/``, as ``penstock route``
                                           │ HTTP: probes, events of caches, requests, streams
                     Directory             ▼
    Ray's controller ───────────▶  ReplicaActor (replica.py) ── holds ──▶ ``penstock serve``

Ray does what Ray is for. It places actors by their resources, restarts those that end, decides how
many there are by a function of ours (``autoscaling.py``, which is pure), and replaces them when the
configuration has changed, new ones before old ones. What a request needs is done by code that
exists without Ray:

- A replica is an actor that holds a ``penstock serve`` process (``server_process.py``), and not an
  engine within the actor: the server has its guardian, its limits and its streams, nothing of which
  shares an interpreter with Ray, and what is tested without Ray is what runs here. The process dies
  with its actor, and an actor whose process has ended is unhealthy.
- Requests go from the ingress to servers by HTTP, not through Ray's handles. A handle would choose
  once for each call, by queue lengths; the router chooses by prompt tokens that are not cached and
  by work, knows when a prompt has been computed, and chooses again in the middle of a stream whose
  server has died. Each token of a stream through a handle would be an object of Ray's besides.
- So there is no second router: Ray's place for one (``RequestRouter``) is where Ray tells who runs.
  ``Directory`` (``directory.py``) is a request router that passes this on to the fleet of the same
  process, with the address, key and build that a replica noted when it was ready.

    DeployConfig   config.py          what is deployed: a file of TOML, or the arguments of an app
    build          app.py             a configuration as an application of Ray Serve
    Cluster        cluster.py         Ray: one that is there, or one of our own on this machine
    manifests/                        the same for KubeRay, and for Kubernetes without Ray

``config``, ``autoscaling``, ``words`` and ``manifests`` import nothing of Ray's.
"""
