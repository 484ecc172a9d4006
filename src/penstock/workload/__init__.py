"""Workloads that servers see: what is kept of a request, traces without text, and summaries."""
