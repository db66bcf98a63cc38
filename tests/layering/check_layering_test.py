#!/usr/bin/env python3
"""The checker's own test: a good tree passes, and each bad line is found."""

import tempfile
import unittest
from pathlib import Path

import check_layering

GOOD = {
    "include/sparsemla/export.h": "#pragma once\n#ifdef __cplusplus\n#define SMLA_API [[x]]\n#else\n#define SMLA_API y\n#endif\n",
    "include/sparsemla/c_api.h": '#pragma once\n#include <stdint.h>\n#include "sparsemla/export.h"\n#ifdef __cplusplus\nextern "C" {\n#endif\n',
    "bindings/c/status.cpp": '#include "c/status.h"\n#include "sparsemla/c_api.h"\n#include "ops/registry.h"\n',
    "include/sparsemla/dtype.h": "#pragma once\n#include <cstdint>\n",
    "include/sparsemla/kv_format.h": '#pragma once\n#include "sparsemla/dtype.h"\n',
    "src/cache/kv_format.cpp": '#include "sparsemla/kv_format.h"\nconstexpr int kRow = 584;\n',
    "src/ops/attention/attention_ref.cpp": '#include "cache/row_codec.h"\n#include "ops/registry.h"\n// a row of 584 bytes\n',
    "src/model/config_json.cpp": "#include <nlohmann/json.hpp>\n",
    "bindings/python/program.cpp": '#include "python/program.h"\n#include "smla/program.h"\n#include "c/named.h"\n',
    "python/sparsemla/__init__.py": "from . import _core, ops\n",
    "python/sparsemla/vllm/layer.py": "import torch\nimport vllm\nimport sparsemla.torch\nfrom .. import ops\n",
    "apps/smla/main.cpp": '#include <CLI/CLI.hpp>\n#include "sparsemla/kv_format.h"\n',
}


class CheckLayering(unittest.TestCase):
    def breaches(self, path=None, text=""):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in GOOD.items() if path is None else [*GOOD.items(), (path, text)]:
                target = Path(folder) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content)
            return check_layering.breaches(folder)

    def expect(self, path, text, phrase):
        found = self.breaches(path, text)
        self.assertEqual(1, len(found), found)
        self.assertIn(phrase, found[0])
        self.assertIn(path, found[0])

    def test_a_good_tree_passes(self):
        self.assertEqual([], self.breaches())

    def test_include_upwards(self):
        self.expect("src/core/log.cpp", '#include "engine/scheduler.h"\n', "higher layer engine")

    def test_public_header_includes_upwards(self):
        self.expect("include/sparsemla/device.h", '#pragma once\n#include "sparsemla/op.h"\n', "higher layer ops")

    def test_bindings_know_no_program(self):
        self.expect("bindings/c/run.cpp", '#include "apps/commands.h"\n', "higher layer apps")

    def test_only_the_python_module_knows_the_program(self):
        self.expect("bindings/c/run.cpp", '#include "smla/program.h"\n', "higher layer apps")

    def test_the_c_interface_knows_no_python(self):
        self.expect("bindings/c/run.cpp", '#include "python/call.h"\n', "higher layer python")

    def test_the_python_core_imports_no_framework(self):
        self.expect("python/sparsemla/ops.py", "def f():\n    import numpy\n", "the core imports numpy")

    def test_the_python_core_imports_no_room(self):
        self.expect("python/sparsemla/ops.py", "from . import torch\n", "the core imports the room torch")

    def test_python_rooms_are_apart(self):
        self.expect(
            "python/sparsemla/transformers/enable.py",
            "from sparsemla.vllm import layer\n",
            "transformers imports the room vllm",
        )
        self.expect("python/sparsemla/torch/_shapes.py", "import vllm\n", "torch imports vllm")

    def test_python_folder_of_no_room(self):
        self.expect("python/sparsemla/misc/things.py", "x = 1\n", "belongs to no room")

    def test_the_library_knows_no_binding(self):
        self.expect("src/layer/step.cpp", '#include "sparsemla/c_api.h"\n', "higher layer bindings")

    def test_c_header_only_in_the_c_interface(self):
        self.expect("include/sparsemla/device.h", "#pragma once\n#include <stdint.h>\n", "only the standard library")

    def test_export_header_has_one_macro(self):
        self.expect(
            "include/sparsemla/export.h", "#pragma once\n#define SMLA_SHARED 1\n", "must not depend on how it is built"
        )

    def test_folder_of_no_layer(self):
        self.expect("src/misc/things.cpp", "int x;\n", "belongs to no layer")

    def test_public_header_of_no_layer(self):
        self.expect("include/sparsemla/misc.h", "#pragma once\n", "belongs to no layer")

    def test_public_header_with_foreign_include(self):
        for name in ("<cuda_runtime.h>", "<omp.h>", "<oneapi/dnnl/dnnl.hpp>", "<nlohmann/json.hpp>"):
            self.expect("include/sparsemla/error.h", f"#pragma once\n#include {name}\n", "only the standard library")

    def test_public_header_that_depends_on_the_build(self):
        self.expect(
            "include/sparsemla/error.h", "#pragma once\n#define SMLA_X 1\n", "must not depend on how it is built"
        )

    def test_public_header_without_guard(self):
        self.expect("include/sparsemla/error.h", "#include <string>\n", "no #pragma once")

    def test_json_outside_its_folders(self):
        self.expect("src/ops/topk/topk.cpp", "#include <nlohmann/json.hpp>\n", "JSON is read")
        self.expect("src/model/config.h", "#include <nlohmann/json.hpp>\n", "JSON is read")

    def test_program_library_in_the_library(self):
        self.expect("src/core/log.cpp", "#include <fmt/format.h>\n", "for programs only")

    def test_onednn_outside_its_files(self):
        self.expect("src/ops/projection/projection_cpu.cpp", "#include <oneapi/dnnl/dnnl.hpp>\n", "_onednn.cpp")

    def test_cuda_outside_its_files(self):
        self.expect("src/device/gpus.cpp", "#include <cuda_runtime.h>\n", ".cu and .cuh")

    def test_cuda_files_by_suffix(self):
        self.expect("src/ops/topk/topk_hopper.cu", "int x;\n", "_cuda (any GPU) or _sm90 (Hopper)")
        self.expect("src/ops/topk/topk_sm90.cpp", "int x;\n", "_sm90 is the suffix of .cu and .cuh files")
        self.expect(
            "src/ops/topk/topk_cuda.cu", '#include "device/ptx/cluster_sm90.cuh"\n', "belongs to files named _sm90"
        )

    def test_words_of_the_model_in_device(self):
        self.expect("src/device/rows.cuh", "struct Rope {};\n", "rope is a word of the model".replace("rope", "Rope"))
        self.expect("src/device/rows.cuh", "int head_of(int thread);\n", "head is a word of the model")

    def test_intrinsics_outside_their_files(self):
        self.expect("src/ops/topk/topk_cpu.cpp", "#include <immintrin.h>\n", "_avx2")

    def test_reference_with_a_kernel(self):
        self.expect("src/ops/topk/topk_ref.cpp", '#include "ops/topk/kernel_words.h"\n', "knows no SIMD")

    def test_record_size_as_a_literal(self):
        self.expect("src/ops/topk/topk.cpp", "int bytes = 3 * 584;\n", "record size 584")
        self.expect("src/ops/topk/topk.cpp", "int page = 37'440;\n", "record size 37440")

    def test_unfinished_words(self):
        word = "TO" + "DO"
        self.expect("docs/notes.md", f"{word}: write this\n", word)


if __name__ == "__main__":
    unittest.main()
