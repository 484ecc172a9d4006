"""Input that is meant to harm a server, and what a plain request beside it meets."""
