#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each example, in both forms: alone, under `gpurecover run`, and with one fault injected: each
kind x damage x first, middle and last launch (--full: every kind and damage). Idempotent examples must end with the native result
and outcome recovered-replay, the others with the error at the app and outcome refused; nothing may
ever end with exit 0 and another result. With --strict an address error is recovered from
where every access of the kernel is proved in bounds, and else returned, with a reason.
"""
import harness
from harness import CODES, Row

KINDS = ("ecc", "nvlink", "illegal-address")
DAMAGES = ("scribble", "partial")
ALL_DAMAGES = ("none", "whole", "partial", "scribble")


def expectation(kind, verdict):
    """(recovers, outcome, counted as): what the built-in rules make of a forged error."""
    if kind == "oom":  # of the launch itself: nothing ran, so anything may be launched again
        return True, "recovered-replay", "recovered"
    if kind == "assert":  # the program's own word
        return False, "returned", "returned"
    if verdict == "idempotent":
        return True, "recovered-replay", "recovered"
    return False, "refused", "refused"


def injected(check, program, kind, damage, place, nth):
    label, path, verdict, checksum, _ = program

    def job():
        seen, report, problems = harness.inject(check, path, [
            "--kernel", "*", "--nth", str(nth), "--error", kind, "--how", "code",
            "--damage", damage])
        recovers, outcome, counted = expectation(kind, verdict)
        problems += harness.result_problems(seen, checksum, None if recovers else CODES[kind])
        if report:
            problems += harness.fault_problems(
                report, (outcome,), counted, code=CODES[kind], injected=True, launch=nth,
                verdict=verdict)
        wanted = "native, %s" % outcome if recovers else "error %d, %s" % (CODES[kind], outcome)
        name = "%s %s %s %s launch (%d)" % (label, kind, damage, place, nth)
        return Row(name, seen.command, wanted, seen.short() + ", " + harness.outcome_of(report),
                   problems)
    return job


def strict(check, program, nth):
    label, path, verdict, checksum, _ = program
    kind = "illegal-address"

    def job():
        seen, report, problems = harness.inject(check, path, [
            "--kernel", "*", "--nth", str(nth), "--error", kind, "--how", "code", "--strict"])
        fault = ((report or {}).get("faults") or [{}])[0]
        reason = fault.get("reason") or ""
        proved = verdict == "idempotent" and fault.get("trust") == "proved"
        if proved:
            allowed = ("recovered-replay",)
        else:
            # For what may not be re-executed anyway, either reason for giving the error back is true.
            allowed = ("returned",) if verdict == "idempotent" else ("returned", "refused")
            # Of the compiler that is always the same, it is known what can be proved.
            if verdict == "idempotent" and not path.endswith("_cudart"):
                problems.append("not proved in bounds")
        problems += harness.result_problems(seen, checksum, None if proved else CODES[kind])
        if report:
            problems += harness.fault_problems(report, allowed, None, code=CODES[kind],
                                               injected=True)
            if not proved and not reason:
                problems.append("no reason is given")
        wanted = "native, recovered-replay" if proved else "error %d, %s, reason" % (
            CODES[kind], " or ".join(allowed))
        return Row("%s --strict %s (%d)" % (label, kind, nth), seen.command, wanted,
                   "%s, %s: %s" % (seen.short(), harness.outcome_of(report), reason), problems)
    return job


def section(args):
    check = harness.Check(args, "gpu-2-matrix.txt" if args.device == "cuda" else "soft-matrix.txt", "Examples x faults: recovered, refused, returned")
    jobs = []
    for program in harness.baseline(check):
        launches = program[4]
        middle = (launches + 1) // 2
        for kind in CODES if args.full else KINDS:
            for damage in ALL_DAMAGES if args.full else DAMAGES:
                for place, nth in (("first", 1), ("middle", middle), ("last", launches)):
                    jobs.append(injected(check, program, kind, damage, place, nth))
        jobs.append(strict(check, program, middle))
    check.run_all(jobs)
    wrong = sum("SILENTLY WRONG" in p for r in check.rows for p in r.problems)
    check.notes.append("silently wrong results: %d" % wrong)
    return check.finish()


if __name__ == "__main__":
    harness.main(__doc__, section, lambda parser: parser.add_argument(
        "--full", action="store_true", help="every kind and damage"))
