#!/usr/bin/env python3
"""symbols_test.py NM LIBRARY HEADERS: the shared library shows the C interface, the names of public headers, and
nothing else."""

import re
import subprocess
import sys
from pathlib import Path

nm, library, headers = sys.argv[1:]
lines = subprocess.run(
    [nm, "-D", "--defined-only", "-C", library], capture_output=True, text=True, check=True
).stdout.splitlines()
names = [line[19:] for line in lines]  # 16 digits of address, a space, the kind, a space
text = "\n".join(path.read_text() for path in Path(headers).rglob("*.h"))
words = set(re.findall(r"\w+", text))
c_functions = set(re.findall(r"^SMLA_API [^;]*?\b(smla_\w+)\(", (Path(headers) / "c_api.h").read_text(), re.MULTILINE))

# "typeinfo for smla::Error" -> Error; "void smla::validate<smla::TopK>(...)" -> validate;
# "smla::Plan<smla::TopK>::run(...)" -> Plan; "std::vector<...> smla::explain<smla::TopK>(...)" -> explain
CPP = re.compile(r"^(?:(?:typeinfo|typeinfo name|vtable) for |std::vector<smla::Candidate.*?> |void )?smla::(\w+)")
bad, seen_c = [], set()
for name in names:
    if re.fullmatch(r"smla_\w+", name):
        seen_c.add(name)
        if name not in c_functions:
            bad.append(f"{name}: not in c_api.h")
        continue
    match = CPP.match(name)
    if not match:
        bad.append(f"{name}: neither smla_* nor smla::")
    elif match.group(1) not in words:
        bad.append(f"{name}: {match.group(1)} is in no public header")
bad += [f"{name}: declared in c_api.h, not shown" for name in sorted(c_functions - seen_c)]
for wanted in (
    "smla::Engine::step",
    "smla::Plan<smla::SparseAttention>::run",
    "smla::explain<smla::TopK>",
    "smla::validate<smla::TopK>",
    "typeinfo for smla::InvalidArgument",
):
    if not any(wanted in name for name in names):
        bad.append(f"{wanted}: a public name that is not shown")
print("\n".join(bad) if bad else f"{len(names)} names, all public")
sys.exit(1 if bad else 0)
