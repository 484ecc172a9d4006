"""Which replica serves a request: the books and the decision, without clocks, sockets or chance.

    Query           query.py      a prompt as routers see it: chains of the keys of its blocks
    HolderIndex     holders.py    which replicas hold a block, as bits of one number per key
    ReplicaBook     books.py      what one replica holds: as it reports, or as is assumed
    LoadLevels      levels.py     replicas in the order of their loads
    LoadBook        loads.py      open requests of replicas, in tokens
    Costs           costs.py      where a request costs least
    Tables          tables.py     all of these, written in Python or native (native.py)
    Known           known.py      what policies may know
    Policy          policies.py   the choice: by cost, and the others that it is compared with
    Router          router.py     all of it together, from a request's choice to its end

``penstock route`` (``router/``), the simulator (``simulate/``) and the benchmark
(``benchmarks/routing``) share this code. Sets of replicas are numbers: bit ``i`` is replica ``i``.
"""
