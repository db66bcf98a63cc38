"""README's example in Python prints what its last line says."""

from __future__ import annotations

import subprocess
import sys

import cases


def test_the_example_prints_what_the_readme_says() -> None:
    command = [sys.executable, str(cases.ROOT / "examples" / "first_attention.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    source = (cases.ROOT / "examples" / "first_attention.py").read_text()
    assert source.splitlines()[-1] == "# " + done.stdout.rstrip()
    assert f"```python\n{source}```\n" in (cases.ROOT / "README.md").read_text()
