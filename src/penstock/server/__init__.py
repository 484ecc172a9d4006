"""The HTTP server: one application over one engine, one package per API dialect."""
