"""A server of several models: a repository behind one address.

Each model that is loaded is a :class:`~penstock.server.models.served.ServedModel`: the engine and
the handlers that a server of one model has. :class:`~penstock.server.models.front.ModelsFront`
finds out which model a request is for, waits until the repository gives it, and hands the request
over.
"""
