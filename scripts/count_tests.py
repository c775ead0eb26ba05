"""Adds up JUnit XML reports and prints "N passed, N failed" as the last line.

    python scripts/count_tests.py REPORT.xml ...

One line a report (passed, failed, skipped) comes first. A report that cannot be read counts as one failure:
its tests did not finish. Exit status 1 if anything failed or nothing passed. Standard library only; the
reports are our own test runners' output.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def count(path: Path) -> tuple[int, int, int]:
    """(passed, failed, skipped) test cases of one report."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            failed += 1
        elif case.find("skipped") is not None or case.get("status") in {"notrun", "disabled"}:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main(arguments: list[str]) -> int:
    total_passed = total_failed = 0
    for path in map(Path, arguments):
        try:
            passed, failed, skipped = count(path)
        except (OSError, ElementTree.ParseError) as error:
            print(f"{path.stem}: no readable report: {error}")
            total_failed += 1
            continue
        print(f"{path.stem}: {passed} passed, {failed} failed, {skipped} skipped")
        total_passed += passed
        total_failed += failed
    print(f"{total_passed} passed, {total_failed} failed")
    return 1 if total_failed or not total_passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
