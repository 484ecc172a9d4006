"""Quantized checkpoints, made of checkpoints in floats: ``penstock quantize``.

A model is quantized layer by layer (:mod:`~penstock.quantize.layers`): what a layer's matrices
multiply is measured while a text runs through it (:mod:`~penstock.quantize.hessian`), a method
rounds them (:mod:`~penstock.quantize.methods`), and the layer, as it is stored then
(:mod:`~penstock.quantize.forms`), makes what the next one is given. Whatever has been done is in
a folder that becomes the checkpoint at the end (:mod:`~penstock.quantize.unfinished`).
"""
