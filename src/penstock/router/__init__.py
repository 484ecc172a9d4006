"""``penstock route``: an HTTP router before servers of OpenAI's API, ours and others.

    Relay           relay.py      one request: chosen, sent, retried, streamed, taken up elsewhere
    Prompts         prompts.py    what a request asks a cache for: keys of blocks, or of text
    Fleet           fleet.py      the replicas, and ``routing.Router``, which decides among them
    ReplicaSets     sets.py       those that take requests for a model, that are late, followed
    Replica         replica.py    one server: whether it is up, its models, its figures
    Prober          probes.py     looks after a replica: is it ready, what is it, what does it serve
    Follower        follower.py   reads the events of its cache
    Pool            upstream.py   connections to it; an Exchange (exchange.py) is one answer
    Stream          resume.py     what a client has of a stream, and lacks of one that begins again

Streams pass as they come. The decision itself, without sockets, is in ``routing/``.
"""
