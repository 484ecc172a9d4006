"""Penstock beside other engines on one machine's CPU: the same bytes, the same requests."""
