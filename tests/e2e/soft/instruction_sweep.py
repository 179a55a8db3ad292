#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A fault at every dynamic instruction of one thread, for small idempotent kernels: wherever the
kernel dies, what it wrote before stays, and after the recovery the result must be the native one.

The sweep goes on until an instruction number is beyond the thread's end, which the report shows as
`not-fired`: so it is known that all instructions were tried, and that each fault fired.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "gpu"))
import harness
from harness import Row

# example, options that make it small, launch, block, thread
SWEEPS = (
    ("vector_add", ["--size", "1000"], 2, 1, 40),
    ("heat2d", ["--size", "16"], 3, 0, 17),
    ("gemm_tiled", ["--size", "16"], 1, 0, 5),
)
MOST = 5000  # instructions: beyond it, the sweep itself is wrong


def sweep(check, name, options, launch, block, thread):
    path = os.path.join(check.args.stage, "examples", name)
    native = harness.execute([path] + options, 60, check.args.native_environment)
    rows, end = [], None
    for instruction in range(MOST):
        if check.remaining() <= 0:
            break
        report_path = check.report_path()
        at = "block=%d,thread=%d,instr=%d" % (block, thread, instruction)
        seen = harness.execute([
            check.args.gpurecover, "inject", "-q", "--device", "soft", "--kernel", "*", "--nth",
            str(launch), "--error", "ecc", "--at", at, "--seed", str(instruction), "--report",
            report_path, "--", path] + options, 60)
        report, problem = harness.load_report(report_path)
        problems = [problem] if problem else harness.report_problems(report)
        problems += harness.result_problems(seen, native.checksum, None)
        outcome = harness.outcome_of(report)
        if outcome == "not-fired" and not problems:
            end = instruction
            break
        if report:
            problems += harness.fault_problems(report, ("recovered-replay",), "recovered",
                                               code=214, injected=True, launch=launch)
        rows.append(Row("%s %s" % (name, at), seen.command, "native, recovered-replay",
                        "%s, %s" % (seen.short(), outcome), problems))
    problems = []
    if native.status != 0 or not native.checksum:
        problems.append("does not work by itself: " + native.err.strip()[-200:])
    if end is None:
        problems.append("the thread's end was not reached")
    elif end < 10:
        problems.append("the thread ends after %d instructions: no sweep" % end)
    rows.append(Row("%s: instructions of the thread" % name, [], "all tried",
                    "%s tried" % (end if end is not None else "not all"), problems))
    for row in rows:
        check.add(row)
    check.planned += len(rows)


def section(args):
    check = harness.Check(args, "soft-instruction-sweep.txt",
                          "A fault at every instruction of a thread: always recovered")
    for one in SWEEPS:
        sweep(check, *one)
    return check.finish()


if __name__ == "__main__":
    sys.argv[1:1] = ["--device", "soft"]
    harness.main(__doc__, section)
