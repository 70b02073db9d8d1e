#: title: a package's own test suite, by pytest
#: part: 2
#: timeout: 280
#: row: suite_cuda_python cuda-python/cuda/tests --path cuda-python --without test_cuda_coredump_attr --without test_graph_poly
#: row: suite_cupy_cuda cupy/tests/cupy_tests/cuda_tests --jobs 8 --every 40
#: row: suite_cupy_core cupy/tests/cupy_tests/core_tests --jobs 8 --every 40
#: row: suite_cupy_fft cupy/tests/cupy_tests/fft_tests --jobs 8 --every 40
#: row: suite_cupy_linalg cupy/tests/cupy_tests/linalg_tests --jobs 8 --every 10
#: row: suite_cupy_random cupy/tests/cupy_tests/random_tests --jobs 8 --every 10
#: note: suite_cuda_python: left out: test_cuda_coredump_attr (core dumps of the GPU are the host's) and test_graph_poly (changes a graph node that copies pageable memory): both are refused by name
#: note: what fails, is skipped or is expected to fail is listed by name on both sides, and equal; scripts/compat/suites/fetch.sh fetches the suites
"""Runs a folder of tests below $COMPAT_SUITES and prints how many passed, and each test that did not, with its outcome.

A test that fails natively counts for nothing; one that fails on one side only makes the row differ. --every N takes the tests whose
name's checksum is divisible by N: the same ones on both sides."""
import argparse
import collections
import os
import sys

import compat
import pytest


class Outcomes:
    """A plug-in: the worst outcome of each test, over set-up, call and teardown."""

    def __init__(self):
        self.of = {}

    def pytest_runtest_logreport(self, report):
        outcome = "expected failure" if hasattr(report, "wasxfail") and report.skipped else report.outcome
        if report.when == "call" or outcome != "passed":
            if self.of.get(report.nodeid) != "failed":
                self.of[report.nodeid] = outcome
        if outcome == "failed":
            compat.note("why", report.nodeid, str(report.longrepr).strip().splitlines()[-1:])

    def pytest_collectreport(self, report):
        if report.failed:
            self.of[report.nodeid] = "not collected"
            compat.note("why", report.nodeid, str(report.longrepr).strip().splitlines()[-1:])


def main():
    args = argparse.ArgumentParser()
    args.add_argument("folder")
    args.add_argument("--path", default="", help="a folder of the suites to import from first")
    args.add_argument("--jobs", type=int, default=1)
    args.add_argument("--every", type=int, default=1)
    args.add_argument("--without", action="append", default=[], help="a test that is left out on both sides, for a reason that the row's note gives")
    args = args.parse_args()
    suites = os.environ.get("COMPAT_SUITES", os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../build/suites")))
    folder = os.path.join(suites, args.folder)
    if not os.path.isdir(folder):
        sys.exit(f"{folder} is missing: scripts/compat/suites/fetch.sh fetches it; COMPAT_SUITES says where it is")
    if args.path:
        sys.path.insert(0, os.path.join(suites, args.path))
        os.environ["PYTHONPATH"] = os.path.join(suites, args.path) + ":" + os.environ.get("PYTHONPATH", "")
    outcomes = Outcomes()
    os.environ["PYTEST_EVERY"] = str(args.every)
    options = ["-q", "-p", "no:cacheprovider", "-p", "pytest_every", "-W", "ignore", "--tb=line", "--no-header", "--continue-on-collection-errors", "--rootdir", folder, folder]
    if args.without:
        options += ["-k", " and ".join("not " + name for name in args.without)]
        compat.fact("left out", *args.without)
    if args.jobs > 1:
        options += ["-n", str(args.jobs), "--dist", "worksteal"]
    stdout, sys.stdout = sys.stdout, sys.stderr  # pytest's own words are not compared
    pytest.main(options, plugins=[outcomes])
    sys.stdout = stdout
    count = collections.Counter(outcomes.of.values())
    compat.fact("tests", len(outcomes.of), "passed", count["passed"])
    for name, outcome in sorted(outcomes.of.items()):
        if outcome != "passed":
            compat.fact(outcome, name)
    sys.exit(0 if count["passed"] else 1)


if __name__ == "__main__":
    main()
