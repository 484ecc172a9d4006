"""Folders of low-rank adapters as PEFT saves them: their options, their tensors, and the matrices
of a plan that these are for."""
