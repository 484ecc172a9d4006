"""Compares two load tests: what differs beyond noise."""
