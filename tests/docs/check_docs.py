#!/usr/bin/env python3
"""Checks what the project's text refers to: `check_docs.py ROOT` prints every fault and exits 1 if there is one.

- Every citation of the specification ("spec 5.4", "spec 2, step 7", "spec 8.5 to 8.7") names a section, and a step of
  it,
  that docs/spec.md has.
- Every test that a page names (`Suite.Name`, `Suite.Na*`, and names alone in docs/verification.md's table of reports)
  exists.
- Every path of the tree that a page gives in backticks (`src/core`, `tests/gpu`, `src/ops/*/*_cuda.cu`) exists.
- Every class, function and group of functions of a public header has a comment. (Members need none where their name
  says it.)
- Every relative link of a page leads to a file, and to a heading of it where it names one.
- No line of a page is longer than 120 columns, except in tables, code and links.
- No page has a Python value as `print` writes it (`{'name': 1}`, `<x object at 0x7f>`) outside of code: that is what is
  left where text with a percent sign was formatted by accident.
"""

import re
import sys
from pathlib import Path

SPEC = "docs/spec.md"
CITING = ("src", "include", "bench", "apps", "bindings", "tests", "docs", "examples", "tools", "cmake")
CITING_SUFFIXES = {".h", ".cpp", ".c", ".cu", ".cuh", ".py", ".md", ".txt", ".cmake"}
# This checker and its test cite sections that do not exist, on purpose.
NOT_CITING = ("tests/docs/check_docs.py", "tests/docs/check_docs_test.py")
NOT_PAGES = ("build", ".git")
COLUMNS = 120

NUMBER = r"\d+(?:\.\d+)?"
STEP = r"(?:algorithm )?step (?P<step>\d+)"
CITATION = re.compile(rf"\b[Ss]pec(?:ification)? (?P<list>{NUMBER}(?:(?:, and |, | and | to ){NUMBER})*)(?:,? {STEP})?")
# A comment continues on the next line: its leader is no text.
LINE_BREAK = re.compile(r"[ \t]*\n[ \t]*(?:///<|///|//|\*(?!/)|#(?!#))?[ \t]*")
HEADING = re.compile(r"^(#+) +(.*?) *$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST|RC_GTEST_PROP|RC_GTEST_FIXTURE_PROP)\(\s*(\w+),\s*(\w+)")
NAMED_TEST = re.compile(r"`([A-Z][A-Za-z0-9]+)\.([A-Z*][A-Za-z0-9*]*)`")
REPORTED = re.compile(r"^\| [^|]*#?\d* \| [^|]* \| `([A-Z]\w+)` \|$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```[ \t]*$", re.MULTILINE | re.DOTALL)


def files(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file() and "__pycache__" not in path.parts:
                yield path


def sections(text):
    """{number: text of the section} of the specification; a section holds its subsections."""
    found = {}
    heads = [(m.start(), len(m.group(1)), m.group(2)) for m in HEADING.finditer(text)]
    for i, (start, depth, title) in enumerate(heads):
        number = re.match(rf"({NUMBER})(?:\.)? ", title)
        if number:
            end = next((s for s, d, _ in heads[i + 1 :] if d <= depth), len(text))
            found[number.group(1)] = text[start:end]
    return found


def citations(text):
    """(line, [numbers], step or None) of each citation; "2 to 4" and "8.5 to 8.7" count as their two ends."""
    joined, lines, line = [], [], 1
    position = 0
    for break_ in LINE_BREAK.finditer(text):
        piece = text[position : break_.start()]
        joined.append(piece + " ")
        lines += [line] * (len(piece) + 1)
        line += break_.group().count("\n")
        position = break_.end()
    joined.append(text[position:])
    lines += [line] * (len(text) - position + 1)
    for match in CITATION.finditer("".join(joined)):
        yield lines[match.start()], re.findall(NUMBER, match.group("list")), match.group("step")


def citation_faults(root):
    known = sections((root / SPEC).read_text())
    faults, count = [], 0
    for path in files(root, CITING, CITING_SUFFIXES):
        name = path.relative_to(root).as_posix()
        if name == SPEC or name in NOT_CITING:
            continue
        for line, numbers, step in citations(path.read_text(errors="replace")):
            count += 1
            for number in numbers:
                if number not in known:
                    faults.append(f"{name}:{line}: spec {number}: {SPEC} has no section {number}")
            last = known.get(numbers[-1])
            if step and last and not re.search(rf"^\s*(?:\({step}\)|{step}\.) ", last, re.MULTILINE):
                faults.append(
                    f"{name}:{line}: spec {numbers[-1]}, step {step}: section {numbers[-1]} has no step {step}"
                )
    return faults, count


def test_faults(root):
    """Names of tests in pages that no test has. A name that ends in * stands for all that begin so."""
    known = {
        f"{suite}.{name}"
        for path in files(root, ("tests",), {".cpp"})
        for suite, name in TEST.findall(path.read_text())
    }

    def exists(suite, name):
        return any(re.fullmatch(re.escape(f"{suite}.{name}").replace(r"\*", ".*"), test) for test in known)

    found = []
    for path in pages(root):
        text = path.read_text()
        named = NAMED_TEST.findall(text)
        if path.name == "verification.md":
            named += [("Incident", name) for name in REPORTED.findall(text)]
        found += [
            f"{path.relative_to(root).as_posix()}: {suite}.{name}: no test has that name"
            for suite, name in named
            if not exists(suite, name)
        ]
    return found


PATH = re.compile(r"`((?:src|include|bench|apps|bindings|tests|docs|examples|tools|cmake|data)/[\w./*-]+)`")


def path_faults(root):
    return [
        f"{path.relative_to(root).as_posix()}: {name}: no such file"
        for path in pages(root)
        for name in sorted(set(PATH.findall(path.read_text())))
        if not any(root.glob(name.rstrip("/")))
    ]


NO_COMMENT = re.compile(
    r"(//|/\*|#|namespace\b|\}|using\b|extern\b|(template *<[^>]*>\s*)?(class|struct|enum) [\w ]+;)"
)


def uncommented(text):
    """(line, text) of each declaration at namespace scope that begins a paragraph without a comment."""
    depth, fresh = 0, True
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        shown = line.strip()
        code = re.sub(r'"(?:\\.|[^"\\])*"', '""', re.sub(r"//.*", "", line))
        if depth == 0 and fresh and shown and not NO_COMMENT.match(shown + " " + lines[number].strip()):
            yield number, shown
        opens_scope = bool(re.match(r'\s*(namespace|extern "")', code)) and "{" in code
        depth = max(0, depth + code.count("{") - code.count("}") - opens_scope)
        fresh = not shown or opens_scope


def header_faults(root):
    return [
        f"{path.relative_to(root).as_posix()}:{number}: no comment before: {line}"
        for path in files(root, ("include",), {".h"})
        for number, line in uncommented(path.read_text())
    ]


def pages(root):
    for path in sorted(root.rglob("*.md")):
        if not set(path.relative_to(root).parts) & set(NOT_PAGES):
            yield path


def anchor(title):
    title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", title).replace(" ", "-")


def link_faults(root):
    faults = []
    anchors = {}
    for path in pages(root):
        plain = FENCE.sub("", path.read_text())
        anchors[path.resolve()] = {anchor(m.group(2)) for m in HEADING.finditer(plain)}
    for path in pages(root):
        name = path.relative_to(root).as_posix()
        for match in LINK.finditer(FENCE.sub("", path.read_text())):
            target = match.group(1) or match.group(2)
            if re.match(r"[a-z]+:", target):
                continue
            file, _, fragment = target.partition("#")
            there = (path.parent / file).resolve() if file else path.resolve()
            if not there.exists():
                faults.append(f"{name}: link to {target}: no such file")
            elif fragment and there.suffix == ".md" and fragment not in anchors.get(there, set()):
                faults.append(f"{name}: link to {target}: that page has no such heading")
    return faults


def column_faults(root):
    faults = []
    for path in pages(root):
        name = path.relative_to(root).as_posix()
        text = path.read_text()
        code = False
        for number, line in enumerate(text.split("\n"), 1):
            if line.startswith("```"):
                code = not code
            shown = re.sub(r"\]\([^)]*\)", "]", line)
            if code or line.startswith(("|", "    ", "<!--")) or len(shown) <= COLUMNS or " " not in shown.strip():
                continue
            faults.append(f"{name}:{number}: {len(shown)} columns, expected at most {COLUMNS}")
    return faults


PRINTED = re.compile(r"""\{['"]\w+['"]: |<[\w. ]+ at 0x[0-9a-f]+>""")
CODE = re.compile(r"^```.*?^```[ \t]*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def printed_faults(root):
    found = []
    for path in pages(root):
        text = CODE.sub(lambda code: "\n" * code.group().count("\n"), path.read_text())
        for number, line in enumerate(text.split("\n"), 1):
            printed = PRINTED.search(line)
            if printed and not line.startswith("    "):
                name = path.relative_to(root).as_posix()
                found.append(f"{name}:{number}: a printed Python value: {line[printed.start() :][:40]}")
    return found


def faults(root):
    root = Path(root)
    found, count = citation_faults(root)
    for check in (header_faults, test_faults, path_faults, link_faults, column_faults, printed_faults):
        found += check(root)
    return found, count


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found, count = faults(sys.argv[1])
    print(
        "\n".join(found)
        if found
        else f"{count} citations of the specification, all links, names of tests, paths and lines are right"
    )
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
