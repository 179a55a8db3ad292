#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A launch that fails with out of memory never ran: it is retried, whatever its kernel does, and
the program ends with its native result; also where its kernel clobbers or cannot be judged.
"""
import harness
from harness import CODES, Row


def retried(check, program, place, nth):
    label, path, verdict, checksum, _ = program

    def job():
        seen, report, problems = harness.inject(check, path, [
            "--kernel", "*", "--nth", str(nth), "--error", "oom", "--how", "code"])
        problems += harness.result_problems(seen, checksum, None)
        attempts = "?"
        if report:
            problems += harness.fault_problems(report, ("recovered-replay",), "recovered",
                                               code=CODES["oom"], injected=True, launch=nth,
                                               phase="launch", action="retry", verdict=verdict)
            attempts = (report.get("faults") or [{}])[0].get("attempts", "?")
        return Row("%s (%s) oom at %s launch (%d)" % (label, verdict, place, nth), seen.command,
                   "native, recovered-replay", "%s, %s, attempts %s" % (
                       seen.short(), harness.outcome_of(report), attempts), problems)
    return job


def section(args):
    check = harness.Check(args, "gpu-3-oom.txt", "Out of memory at a launch is retried")
    jobs = []
    for program in harness.baseline(check):
        for place, nth in (("first", 1), ("middle", (program[4] + 1) // 2), ("last", program[4])):
            jobs.append(retried(check, program, place, nth))
    check.run_all(jobs)
    return check.finish()


if __name__ == "__main__":
    harness.main(__doc__, section)
