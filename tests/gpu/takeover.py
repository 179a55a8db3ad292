#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sticky faults survived: each example, in both forms, hit by a fault that kills the CUDA of its
process (--how fault: a real one; --how latch: later calls report it, the device is sound), at its
first, middle and last launch, with a cold and a warm standby. What is idempotent must end with the
native result and outcome recovered-takeover, the rest with the error at the app and `refused`; an
assert is the program's own word and comes back. Nothing may end with exit 0 and another result.

On softgpu every kind can be made; on a GPU a trap (launch-failure), an illegal and a misaligned
address and an assert. Reports how long it took until the error was met, and the takeover itself.
"""
import statistics

import harness
from harness import CODES, Row

SOFT = {"fault": ("illegal-address", "launch-failure", "ecc", "contained"),
        "latch": ("illegal-address", "launch-failure", "ecc", "contained")}
GPU = {"fault": ("illegal-address", "launch-failure"), "latch": ("ecc",)}
EXTRA = {"fault": ("misaligned", "assert")}


def expectation(kind, verdict):
    if kind == "assert":
        return False, "returned", "returned"
    if verdict == "idempotent":
        return True, "recovered-takeover", "recovered"
    return False, "refused", "refused"


def hit(check, program, how, kind, standby, place, nth, times):
    label, path, verdict, checksum, _ = program

    def job():
        seen, report, problems = harness.inject(check, path, [
            "--kernel", "*", "--nth", str(nth), "--error", kind, "--how", how,
            "--standby", standby])
        recovers, outcome, counted = expectation(kind, verdict)
        problems += harness.result_problems(seen, checksum, None if recovers else CODES[kind])
        figures = ""
        if report:
            problems += harness.fault_problems(report, (outcome,), counted, code=CODES[kind],
                                               injected=True)
            fault = (report.get("faults") or [{}])[0]
            figures = ", met after %.0f ms, %.1f ms" % (fault.get("detect_ms") or 0,
                                                        fault.get("recover_ms") or 0)
            if recovers and not problems:
                with check.lock:
                    times.setdefault((how, kind, standby), []).append(
                        (fault["detect_ms"], fault["recover_ms"]))
        wanted = "native, %s" % outcome if recovers else "error %d, %s" % (CODES[kind], outcome)
        name = "%s %s %s %s %s launch (%d)" % (label, how, kind, standby, place, nth)
        return Row(name, seen.command, wanted,
                   seen.short() + ", " + harness.outcome_of(report) + figures, problems)
    return job


def section(args):
    check = harness.Check(args, "gpu-4-takeover.txt" if args.device == "cuda" else "soft-takeover.txt",
                          "Sticky faults x examples: taken over, refused, returned")
    table = SOFT if args.device == "soft" else GPU
    jobs, times = [], {}
    for program in harness.baseline(check):
        launches, idempotent = program[4], program[2] == "idempotent"
        places = [("first", 1), ("middle", (launches + 1) // 2), ("last", launches)]
        for how, kinds in table.items():
            for kind in kinds:
                # On a GPU each takes seconds, most of it for the contexts of other processes: the
                # runtime forms, and faults that are none of the device's, have one place.
                brief = args.device == "cuda" and (
                    how == "latch" or program[0].endswith("_cudart"))
                for standby in ("cold", "warm") if idempotent else ("cold",):
                    # What is refused is refused alike wherever it happens.
                    for place, nth in places if idempotent and not brief else places[1:2]:
                        jobs.append(hit(check, program, how, kind, standby, place, nth, times))
        for how, kinds in EXTRA.items():
            for kind in kinds:
                jobs.append(hit(check, program, how, kind, "cold", *places[1], times))
    check.run_all(jobs)
    wrong = sum("SILENTLY WRONG" in p for r in check.rows for p in r.problems)
    check.notes.append("silently wrong results: %d" % wrong)
    check.notes.append("")
    check.notes.append("%-8s %-16s %-5s %5s  %-28s %s" % (
        "how", "kind", "", "runs", "met after, ms (median, max)", "takeover, ms (median, max)"))
    for (how, kind, standby), values in sorted(times.items()):
        met, took = zip(*values)
        check.notes.append("%-8s %-16s %-5s %5d  %9.1f %9.1f %20.1f %9.1f" % (
            how, kind, standby, len(values), statistics.median(met), max(met),
            statistics.median(took), max(took)))
    return check.finish()


if __name__ == "__main__":
    harness.main(__doc__, section)
