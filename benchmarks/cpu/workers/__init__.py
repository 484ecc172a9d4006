"""One module per engine, each run in the environment of that engine."""
