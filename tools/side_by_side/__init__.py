"""Sparse attention of this library beside a peer's kernels: one process, one GPU, the same caches, queries and lists.

`python3 tools/side_by_side --help` names the commands, docs/performance/side_by_side.md explains what they measure.
Only `run` needs torch and a GPU; all else is the standard library. Folders: attention, index and ops have the cells of
their grids, the inputs, the peer and what measures them.
"""
