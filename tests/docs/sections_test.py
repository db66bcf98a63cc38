#!/usr/bin/env python3
"""The generated sections of the pages: each stands in one page, once, and a tool that cannot find its section says
so."""

import contextlib
import io
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import gpu_tables  # noqa: E402
import pages  # noqa: E402
import performance  # noqa: E402

SECTION = "<!-- x:begin -->\nold\n<!-- x:end -->\n"


class Sections(unittest.TestCase):
    def refused(self, found):
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as end:
            pages.fill(found, {"x": "new\n"})
        self.assertIn("<!-- x:begin -->", str(end.exception))

    def test_only_the_section_changes(self):
        got = pages.fill({"a": f"one\n{SECTION}two\n", "b": "three\n"}, {"x": "new\n"})
        self.assertEqual({"a": "one\n<!-- x:begin -->\nnew\n<!-- x:end -->\ntwo\n", "b": "three\n"}, got)

    def test_a_missing_section(self):
        self.refused({"a": "one\n"})

    def test_a_section_twice(self):
        self.refused({"a": SECTION + SECTION})
        self.refused({"a": SECTION, "b": SECTION})

    def test_a_section_without_an_end(self):
        self.refused({"a": "<!-- x:begin -->\nold\n"})

    def test_every_section_of_the_tools_has_its_page(self):
        names = [*performance.SECTIONS, *(f"gpu_{name}" for name in gpu_tables.SECTIONS)]
        filled = pages.fill(pages.read(pages.PERFORMANCE), {name: f"{name} was here\n" for name in names})
        for name in names:
            self.assertEqual(1, sum(text.count(f"\n{name} was here\n") for text in filled.values()), name)

    def test_peers_of_another_card_are_void(self):
        def report(copy, drift):
            return {
                "machine": {
                    "drift": drift,
                    "peak_gflops": {"product": 799e3},
                    "bandwidth_gbs": {"copy": copy, "gather_2": 3350, "gather_64": 3580},
                }
            }

        self.assertFalse(gpu_tables.void(report(4271, 0.01)))
        self.assertTrue(gpu_tables.void(report(3994, 0.01)))
        self.assertTrue(gpu_tables.void(report(4271, 0.06)))


if __name__ == "__main__":
    unittest.main()
