"""One folder an op: `reference.py` in plain torch, `triton.py` for accelerators, one function that chooses.

Importing an op imports no Triton; `dispatch` does when a kernel is chosen.
"""
