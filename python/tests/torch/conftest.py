"""Waiting threads sleep: torch and the library have a pool of OpenMP threads each."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported
