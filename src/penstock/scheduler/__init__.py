"""Decides what each step computes: sequences, their queues and shares, and the rule that fills a
step."""
