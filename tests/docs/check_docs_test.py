#!/usr/bin/env python3
"""The checker's own test: good text passes, and each kind of fault is found with its file and line."""

import tempfile
import unittest
from pathlib import Path

import check_docs

GOOD = {
    "docs/spec.md": "# Specification\n\n## 1. Numbers\n\n## 2. Layer\n\n    (1) project\n    (7) rotate back\n\n### 2.1 Norms\n\n"
    "## 3. Compressor\n\n1. save\n2. pool\n\n## 15. Rules\n",
    "docs/page.md": "# Page\n\nSee [the numbers](spec.md#1-numbers), [below](#a-part) and [source](../src/a.cpp) (spec 3).\n\n## A `part`\n",
    "src/a.cpp": "// The norm (spec 2.1), both (spec 2, step 7), all (spec 1 to 3) and (spec 2, 15's table).\n/// spec 3, algorithm\n/// step 2\n",
    "tests/a_test.cpp": "// Spec 2's chain, spec\n//   15.\nTEST(Layer, GoldenNorm) {}\nRC_GTEST_PROP(Layer, Chunks, ()) {}\nTEST(Incident, Vllm1Zero) {}\n",
    "docs/verification.md": "| vllm#1 | zero lengths | `Vllm1Zero` |\n\n`Layer.GoldenNorm`, `Layer.Ch*`, `Problem.dim`\n",
    "include/a.h": "#pragma once\n\nnamespace n {\n\ntemplate <class T>\nclass Plan;\n\n/// A row.\nstruct Row {\n  int bytes = 0;\n\n"
    "  int size() const { return bytes; }\n};\n\n/// Two.\nint f();\nint g();\n\n}  // namespace n\n",
    "build/page.md": "[nowhere](nowhere.md)\n",
}


class CheckDocs(unittest.TestCase):
    def faults(self, path=None, text=""):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in [*GOOD.items(), *([(path, text)] if path else [])]:
                target = Path(folder) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content)
            return check_docs.faults(folder)

    def expect(self, path, text, *phrases):
        found, _ = self.faults(path, text)
        self.assertEqual(len(phrases), len(found), found)
        for fault, phrase in zip(found, phrases):
            self.assertIn(phrase, fault)
            self.assertTrue(fault.startswith(path), fault)

    def test_good_text_passes_and_every_citation_is_seen(self):
        found, count = self.faults()
        self.assertEqual([], found)
        self.assertEqual(8, count)

    def test_a_section_that_does_not_exist(self):
        self.expect("src/b.h", "int a;\n// (spec 2.9)\n", "src/b.h:2: spec 2.9")

    def test_a_section_in_a_list(self):
        self.expect("include/b.h", "/// (spec 2, 4 and 15)\n", "no section 4")

    def test_the_end_of_a_range(self):
        self.expect("bench/b.cpp", "// spec 2 to 14\n", "no section 14")

    def test_a_step_that_does_not_exist(self):
        self.expect("src/b.cu", "// spec 2, step 8\n", "has no step 8")

    def test_a_step_across_lines(self):
        self.expect("src/b.cuh", "/// spec 3,\n///   step 3\n", "src/b.cuh:1: spec 3, step 3")

    def test_a_number_across_lines(self):
        self.expect("apps/b.cpp", "// as in spec\n// 9.9\n", "apps/b.cpp:1: spec 9.9")

    def test_a_link_to_no_file(self):
        self.expect("docs/b.md", "[a](gone.md)\n", "no such file")

    def test_a_link_to_no_heading(self):
        self.expect("b.md", "[a](docs/page.md#part)\n", "no such heading")

    def test_a_picture_that_is_gone(self):
        self.expect("b.md", "![a](docs/a.png)\n", "no such file")

    def test_a_test_that_does_not_exist(self):
        self.expect("b.md", "`Layer.GoldenNorms`\n", "Layer.GoldenNorms: no test")

    def test_no_test_begins_so(self):
        self.expect("b.md", "`Layer.Gone*`\n", "Layer.Gone*: no test")

    def test_a_report_whose_test_does_not_exist(self):
        self.expect("docs/verification.md", "| vllm#1 | zero | `Vllm2Zero` |\n", "Incident.Vllm2Zero: no test")

    def test_a_path_that_does_not_exist(self):
        self.expect("b.md", "`src/a.cpp`, `src/*.cpp`, `src/b.cpp`, `src/<op>.cpp`\n", "src/b.cpp: no such file")

    def test_a_class_without_a_comment(self):
        self.expect(
            "include/b.h", "namespace n {\n\nclass Row {\n};\n\n}\n", "include/b.h:3: no comment before: class Row {"
        )

    def test_a_function_without_a_comment(self):
        self.expect(
            "include/b.h",
            "/// One.\nint f();\n\ntemplate <class T>\nT g();\n",
            "include/b.h:4: no comment before: template <class T>",
        )

    def test_a_long_line(self):
        self.expect("b.md", "ok\n" + "word " * 25 + "\n", "b.md:2: 125 columns")

    def test_tables_code_and_links_may_be_long(self):
        long = "word " * 25
        found, _ = self.faults(
            "b.md", f"| {long} |\n\n```\n{long}\n```\n\n    {long}\n\n[a](docs/page.md#a-part) " + "word " * 21 + "\n"
        )
        self.assertEqual([], found)

    def test_a_value_that_was_printed_into_a_table(self):
        self.expect(
            "b.md", "| memory | at most 1 {'schema': 'a/1', 'seconds': 780.0}rger |\n", "b.md:1: a printed Python value"
        )

    def test_an_object_that_was_printed(self):
        self.expect("b.md", "ok\n<Report object at 0x7f01>\n", "b.md:2: a printed Python value: <Report object")

    def test_a_value_in_code_is_none(self):
        found, _ = self.faults("b.md", "`{'a': 1}`\n\n```python\nx = {'a': 1}\n```\n\n    y = {'a': 1}\n")
        self.assertEqual([], found)


if __name__ == "__main__":
    unittest.main()
