"""Sections of the pages that a tool writes: the text between <!-- NAME:begin --> and <!-- NAME:end -->. Standard
library only."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PERFORMANCE = ("docs/performance.md", "docs/performance/gpu.md", "docs/performance/cpu.md")


def fill(pages: dict[str, str], sections: dict[str, str]) -> dict[str, str]:
    """{page: text} with every section replaced; `pages` is {page: text}. Each name must stand in exactly one page,
    once."""
    pages = dict(pages)
    for name, content in sections.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"
        homes = [page for page, text in pages.items() if begin in text or end in text]
        if len(homes) != 1 or pages[homes[0]].count(begin) != 1 or pages[homes[0]].count(end) != 1:
            sys.exit(
                f"expected one section between {begin.strip()} and {end.strip()} in {', '.join(pages)}; found in {len(homes)} pages"
            )
        head, rest = pages[homes[0]].split(begin)
        pages[homes[0]] = head + begin + content + end + rest.split(end)[1]
    return pages


def read(names: Iterable[str]) -> dict[str, str]:
    return {name: (ROOT / name).read_text() for name in names}


def rewrite(names: Iterable[str], sections: dict[str, str]) -> list[str]:
    """Writes the sections to the pages of those names and returns the names of the pages that changed."""
    before = read(names := tuple(names))
    after = fill(before, sections)
    changed = [name for name in names if after[name] != before[name]]
    for name in changed:
        (ROOT / name).write_text(after[name])
    return changed
