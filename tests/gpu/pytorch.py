#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A PyTorch training (train.py) under `gpurecover run` ends with a loss within the spread that the
same training shows alone, and the report lists its kernels with verdicts and reasons, and the
driver calls that our table has no row for.

PyTorch is not bit-reproducible, so the spread is measured in the same session: [min, max] of the
native repetitions, in two processes. A small sample does not reach the ends of its distribution,
so a loss passes if it is within that interval widened by its own length on both sides; how many lie
in the interval itself is shown too.
"""
import os
import re
import shutil
import sys

import harness
from harness import Row

LINE = re.compile(r"^loss=(\S+) weight_sum=(\S+)$", re.M)
REPEAT, STEPS = 8, 40
# Where the report may name the calls without a row.
CALL_KEYS = ("calls_without_row", "unlisted_calls", "unknown_calls")


def training(check, name, prefix, samples):
    def job():
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py")
        python = shutil.which("python3") or sys.executable
        command = prefix + [python, script, "--steps", str(STEPS), "--repeat", str(REPEAT)]
        seen = harness.execute(command, min(150, max(20, check.remaining())))
        found = [(float(a), float(b)) for a, b in LINE.findall(seen.out)]
        with check.lock:
            samples.extend(found)
        problems = []
        if seen.status != 0 or len(found) != REPEAT:
            problems.append("exit %d, %d results: %s" % (seen.status, len(found),
                                                         seen.err.strip()[-300:]))
        return Row(name, seen.command, "exit 0, %d results" % REPEAT, "exit %d, %d results, %.1f s"
                   % (seen.status, len(found), seen.seconds), problems)
    return job


def within(name, native, ours):
    low, high = min(native), max(native)
    margin = high - low
    outside = [v for v in ours if not low - margin <= v <= high + margin]
    strictly = sum(low <= v <= high for v in ours)
    return Row(name, [], "%.9g … %.9g, and %.2g on both sides" % (low, high, margin),
               "%.9g … %.9g, %d of %d in the interval itself" % (
                   min(ours), max(ours), strictly, len(ours)),
               ["outside: " + ", ".join("%.9g" % v for v in outside)] if outside else [])


def kernel_rows(check, report):
    totals, kernels = report["totals"], report.get("kernels", [])
    named = [k for k in kernels if k.get("name")]
    reasoned = [k for k in kernels if k.get("verdict") == "idempotent" or k.get("reason")]
    problems = harness.report_problems(report)
    if totals.get("launches", 0) < STEPS * REPEAT:
        problems.append("%s launches: not attached?" % totals.get("launches"))
    if not kernels or len(named) != len(kernels):
        problems.append("%d of %d kernels have a name" % (len(named), len(kernels)))
    if len(reasoned) != len(kernels):
        problems.append("%d kernels are not idempotent and have no reason" % (
            len(kernels) - len(reasoned)))
    check.add(Row("report: kernels, verdicts, reasons", [], "all of them", "%d kernels, %d launches: "
                  "%s" % (len(kernels), totals.get("launches", 0), ", ".join(
                      "%s %s" % (totals.get(v), v) for v in harness.VERDICTS)), problems))
    key = next((k for k in CALL_KEYS if k in report), None)
    check.add(Row("report: driver calls without a row", [], "listed, also if there is none",
                  "%s: %s" % (key, report.get(key)) if key else "no such list",
                  [] if key else ["none of %s in the report" % ", ".join(CALL_KEYS)]))
    check.planned += 2
    check.notes += ["", "%-10s %8s %-9s %s" % ("verdict", "launches", "trust", "kernel: reason")]
    for k in sorted(kernels, key=lambda k: -k.get("launches", 0)):
        check.notes.append("%-10s %8d %-9s %s%s" % (
            k.get("verdict"), k.get("launches", 0), k.get("trust") or "-", k.get("name", "")[:90],
            ": " + k["reason"] if k.get("reason") else ""))


def section(args):
    check = harness.Check(args, "gpu-6-pytorch.txt", "PyTorch training under gpurecover run")
    native, ours = [], []
    report_path = check.report_path()
    # One after the other: trainings side by side would disturb each other's times, and the first
    # one warms the file cache for the rest.
    args.jobs = 1
    check.run_all([training(check, "train.py alone, first process", [], native),
                   training(check, "train.py under run",
                            [args.gpurecover, "run", "-q", "--report", report_path, "--"], ours),
                   training(check, "train.py alone, second process", [], native)])
    check.planned += 2
    if native and ours:
        check.add(within("loss under run", [s[0] for s in native], [s[0] for s in ours]))
        check.add(within("weight sum under run", [s[1] for s in native], [s[1] for s in ours]))
    report, problem = harness.load_report(report_path)
    if report:
        kernel_rows(check, report)
    else:
        check.planned += 1
        check.add(Row("report", [], "there", "", [problem]))
    return check.finish()


if __name__ == "__main__":
    harness.main(__doc__, section)
