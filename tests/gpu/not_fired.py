#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plan that fired and one that never fires are told apart: by totals.not_fired, by the fault's
outcome, and on stderr.
"""
import re

import harness
from harness import Row

SAYS_SO = re.compile(r"^gpurecover: .*(not[- ]fired|never fired|did not fire)", re.M)


def planned(check, program, name, options, fires):
    label, path, verdict, checksum, _ = program

    def job():
        seen, report, problems = harness.inject(
            check, path, options + ["--error", "ecc", "--how", "code"], quiet=False)
        if fires:
            recovers = verdict == "idempotent"
            problems += harness.result_problems(seen, checksum, None if recovers else 214)
            wanted = "recovered-replay" if recovers else "refused"
            said = bool(SAYS_SO.search(seen.err))
            if said:
                problems.append("stderr says that the plan did not fire")
        else:
            problems += harness.result_problems(seen, checksum, None)
            wanted = "not-fired"
            said = bool(SAYS_SO.search(seen.err))
            if not said:
                problems.append("stderr does not say so: " + seen.err.strip()[-200:])
        totals = {}
        if report:
            totals = report["totals"]
            problems += harness.fault_problems(report, (wanted,), None)
            for key, value in (("not_fired", 0 if fires else 1), ("faults", 1)):
                if totals.get(key) != value:
                    problems.append("totals.%s is %r, expected %d" % (key, totals.get(key), value))
        return Row("%s %s" % (label, name), seen.command, wanted, "%s, %s, not_fired %s, %s" % (
            seen.short(), harness.outcome_of(report), totals.get("not_fired"),
            "stderr says not fired" if said else "stderr does not say not fired"), problems)
    return job


def section(args):
    check = harness.Check(args, "gpu-4-not-fired.txt", "Fired and not fired are told apart")
    jobs = []
    for program in harness.baseline(check):
        jobs += [
            planned(check, program, "--nth 1", ["--kernel", "*", "--nth", "1"], True),
            planned(check, program, "--nth 1000000", ["--kernel", "*", "--nth", "1000000"], False),
            planned(check, program, "--kernel no_such_kernel",
                    ["--kernel", "no_such_kernel", "--nth", "1"], False)]
    check.run_all(jobs)
    return check.finish()


if __name__ == "__main__":
    harness.main(__doc__, section)
