#!/usr/bin/env python3
"""`summarize_tests.py LABEL JUNIT [stopped]`: one line for each failed or skipped test with its reason, then "COUNT
passed failed skipped".

`stopped`: the run was ended by its stop time; a test that was cut off there, without a word of failure, is a skipped
one.
"""

import re
import sys
import xml.etree.ElementTree as xml

NOISE = re.compile(
    r"^(Note: Google Test filter|\[[ =\-A-Z]*\]|Running main|Using configuration|\s*$|.*: Skipped$|\d+ (FAILED|DISABLED))"
)


def reason(case):
    """The test's own words: its first lines that are not gtest's frame. pytest says them in an element of its own."""
    for said in case.findall("skipped") + case.findall("failure") + case.findall("error"):
        if said.get("message"):
            return " ".join(said.get("message").split())[:200]
    text = case.findtext("system-out") or ""
    lines = [line.strip() for line in text.splitlines() if not NOISE.match(line)]
    return " ".join(lines[:2])[:200] or "no reason was printed"


def pytest_status(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "fail"
    return "notrun" if case.find("skipped") is not None else "run"


def cut_off(case):
    """Killed in the middle: no verdict of gtest's, no report of a sanitizer's, no word of a crash."""
    text = case.findtext("system-out") or ""
    return not re.search(
        r"\[ +(PASSED|FAILED|SKIPPED) +\]|ERROR: |runtime error|WARNING: ThreadSanitizer|terminate called|Segmentation|Falsifiable",
        text,
    )


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["stopped"]):
        sys.exit("usage: summarize_tests.py LABEL JUNIT [stopped]")
    label, path = sys.argv[1:3]
    stopped = len(sys.argv) == 4
    passed = failed = skipped = 0
    for case in xml.parse(path).getroot().iter("testcase"):
        status = case.get("status") or pytest_status(case)
        if status == "run":
            passed += 1
        elif status == "fail" and stopped and cut_off(case):
            skipped += 1
            print(f"SKIP {label}: {case.get('name')}: cut off when the time was up")
        elif status == "fail":
            failed += 1
            print(f"FAIL {label}: {case.get('name')}: {reason(case)}")
        else:
            skipped += 1
            print(f"SKIP {label}: {case.get('name')}: {reason(case)}")
    print(f"COUNT {passed} {failed} {skipped}")


if __name__ == "__main__":
    main()
