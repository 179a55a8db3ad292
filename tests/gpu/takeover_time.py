#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a takeover takes (takeover_time/: many chunks of device memory, many modules): a real trap
(--error launch-failure --how fault), cold and warm, one run at a time, several times each. Prints
how long it took until the error was met, the takeover itself, and its steps, against the budgets of
the design: beyond the driver's own reporting time at most 10 ms warm and 500 ms cold.

A wrong result is a failure; a time over its budget is not, its verdict is printed.
"""
import json
import os
import statistics

import harness
from harness import CODES, Row

BUDGET_MS = {"cold": 500.0, "warm": 10.0}
# chunks, MiB of each, modules
GPU = ((64, 1024, 100), (1024, 64, 100))
SOFT = ((16, 1, 12), (96, 2, 12))
ROUNDS = 3


def add_options(parser):
    parser.add_argument("--shape", action="append", metavar="CHUNKSxMIBxMODULES",
                        help="instead of the default shapes; may be given several times")
    parser.add_argument("--large-outputs", action="store_true",
                        help="the kernels write into the chunks: what they may write is large, and "
                             "saved and compared at the takeover")
    parser.add_argument("--times", type=int, default=5, help="runs of each shape and kind")
    parser.add_argument("--wait", type=int, metavar="MS",
                        help="how long the program pauses before the fault, in which a warm standby "
                             "catches up (default: 3000, on the software device 500)")


def shapes_of(args):
    if not args.shape:
        return SOFT if args.device == "soft" else GPU
    found = []
    for text in args.shape:
        try:
            chunks, mib, modules = (int(part) for part in text.split("x"))
        except ValueError:
            raise SystemExit("--shape %s: three numbers are wanted, like 64x1024x100" % text)
        found.append((chunks, mib, modules))
    return tuple(found)


def name_of(shape):
    return "%d x %d MiB, %d modules" % shape


def program_of(args, shape, wait):
    return [os.path.join(args.stage, "tests", "takeover_time"), "--chunks", str(shape[0]), "--mib",
            str(shape[1]), "--modules", str(shape[2]), "--rounds", str(ROUNDS), "--wait", str(wait),
            "--large-outputs", "1" if args.large_outputs else "0"]


def alone(check, shape, right):
    def job():
        seen = harness.execute(program_of(check.args, shape, 0), check.args.each,
                               check.args.native_environment)
        problems = []
        if seen.status != 0 or not seen.checksum:
            problems.append("does not work by itself: " + (seen.out + seen.err).strip()[-300:])
        right[shape] = seen.checksum
        return Row(name_of(shape) + " alone", seen.command, "exit 0", seen.short(), problems)
    return job


def hit(check, shape, standby, nth, number, wait, right, faults):
    args = check.args

    def job():
        report_path = check.report_path()
        command = [args.gpurecover, "inject", "-q", "--device", args.device, "--report", report_path,
                   "--kernel", "*", "--nth", str(nth), "--error", "launch-failure", "--how", "fault",
                   "--standby", standby, "--"] + program_of(args, shape, wait)
        seen = harness.execute(command, args.each)
        report, problem = harness.load_report(report_path)
        problems = [problem] if problem else harness.report_problems(report)
        problems += harness.result_problems(seen, right.get(shape), None)
        figures = ""
        if report:
            problems += harness.fault_problems(report, ("recovered-takeover",), "recovered",
                                               code=CODES["launch-failure"], injected=True)
            fault = (report.get("faults") or [{}])[0]
            figures = ", met after %.0f ms, %.1f ms" % (fault.get("detect_ms") or 0,
                                                        fault.get("recover_ms") or 0)
            if not problems:
                faults.setdefault((shape, standby), []).append(fault)
        return Row("%s %s %d" % (name_of(shape), standby, number), seen.command,
                   "native, recovered-takeover",
                   seen.short() + ", " + harness.outcome_of(report) + figures, problems)
    return job


def spread(values):
    return "%9.2f %9.2f %9.2f" % (statistics.median(values), min(values), max(values))


def section(args):
    args.jobs = 1
    args.each = max(args.each, 60)
    name = "gpu-4-takeover-time.txt" if args.device == "cuda" else "soft-takeover-time.txt"
    check = harness.Check(args, name, "How long a takeover takes")
    wait = args.wait if args.wait is not None else 500 if args.device == "soft" else 3000
    right, faults, jobs = {}, {}, []
    for shape in shapes_of(args):
        jobs.append(alone(check, shape, right))
        for number in range(1, args.times + 1):
            for standby in ("cold", "warm"):
                # In the second round, after the pause.
                jobs.append(hit(check, shape, standby, shape[2] + (shape[2] + 1) // 2, number, wait,
                                right, faults))
    check.run_all(jobs)
    lines = ["%-30s %-5s %4s %29s %29s  %s" % ("", "", "runs", "met after, ms (med, min, max)",
                                               "takeover, ms (med, min, max)", "budget")]
    for (shape, standby), found in faults.items():
        took = [fault["recover_ms"] for fault in found]
        budget = BUDGET_MS[standby]
        verdict = "met" if max(took) <= budget else \
            "met by the median" if statistics.median(took) <= budget else "EXCEEDED"
        lines.append("%-30s %-5s %4d %s %s  %g ms: %s" % (
            name_of(shape), standby, len(found), spread([fault["detect_ms"] for fault in found]),
            spread(took), budget, verdict))
        steps = {}
        for fault in found:
            for step, ms in fault.get("steps", {}).items():
                steps.setdefault(step, []).append(ms)
        for step, values in steps.items():
            lines.append("    %-32s %s" % (step, spread(values)))
    check.notes += [""] + lines
    print("\n".join(lines), flush=True)
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, name.replace(".txt", ".json")), "w") as f:
        json.dump([{"chunks": shape[0], "mib": shape[1], "modules": shape[2], "standby": standby,
                    "detect_ms": [fault["detect_ms"] for fault in found],
                    "recover_ms": [fault["recover_ms"] for fault in found],
                    "steps": [fault.get("steps", {}) for fault in found]}
                   for (shape, standby), found in faults.items()], f, indent=1)
    return check.finish()


if __name__ == "__main__":
    harness.main(__doc__, section, add_options)
