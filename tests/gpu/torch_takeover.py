#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A PyTorch training (train.py) is hit by a real trap in a launch of one of its kernels, which a
reviewed rule (torch_rules.toml) declares: it must end as if nothing had happened, with a loss within
the spread that the same training shows alone. From the step after the fault on it also uses kernels
that were never loaded before, and tells how long a step took before and after.

PyTorch's own caching of memory is off (PYTORCH_NO_CUDA_MEMORY_CACHING=1), natively too, so that
each tensor is an allocation and the declared ranges of a launch do not overlap its neighbours'.
"""
import os
import re
import shutil
import sys

import harness
from harness import Row
from pytorch import LINE, within

STEPS, FAULT_AT, LATE = 60, 20, 25
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def training(check, name, options, samples, times, wanted, repeat=1):
    def job():
        here = os.path.dirname(os.path.abspath(__file__))
        python = shutil.which("python3") or sys.executable
        report_path = check.report_path()
        command = [python, os.path.join(here, "train.py"), "--steps", str(STEPS), "--late", str(LATE),
                   "--repeat", str(repeat)]
        if options is not None:
            command = [check.args.gpurecover] + options + ["--report", report_path, "--"] + command
        seen = harness.execute(command, min(100, max(20, check.remaining())), ENVIRONMENT)
        found = [(float(a), float(b)) for a, b in LINE.findall(seen.out)]
        times[name] = re.findall(r"^ms per step: .*$", seen.err, re.M)
        problems, outcome = [], ""
        if seen.status != 0 or len(found) != repeat:
            problems.append("exit %d, %d results: %s" % (seen.status, len(found),
                                                         seen.err.strip()[-900:]))
        else:
            samples.extend(found)
        if options is not None:
            report, problem = harness.load_report(report_path)
            problems += [problem] if problem else harness.report_problems(report)
            if report and wanted:
                problems += harness.fault_problems(report, (wanted,), None, injected=True)
                fault = (report.get("faults") or [{}])[0]
                outcome = ", %s of %s in %.1f ms, met after %.0f ms" % (
                    fault.get("outcome"), fault.get("kernel"), fault.get("recover_ms") or 0,
                    fault.get("detect_ms") or 0)
            elif report and report["totals"]["faults"]:
                problems.append("faults without a plan")
        return Row(name, seen.command, "exit 0" + (", " + wanted if wanted else ""),
                   "exit %d%s, %.1f s" % (seen.status, outcome, seen.seconds), problems)
    return job


def section(args):
    check = harness.Check(args, "gpu-4-torch-takeover.txt", "PyTorch training with a real trap")
    rules = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_rules.toml")
    native, ours, times = [], [], {}
    args.jobs = 1
    jobs = [training(check, "alone %d" % i, None, native, times, None, 6) for i in range(1, 3)]
    jobs.append(training(check, "under run, no fault", ["run", "-q", "--rules", rules], ours, times,
                         None))
    for standby in ("cold", "warm"):
        jobs.append(training(check, "trap at launch %d, %s" % (FAULT_AT, standby), [
            "inject", "-q", "--rules", rules, "--standby", standby, "--kernel",
            "softmax_warp_forward", "--nth", str(FAULT_AT), "--error", "launch-failure", "--how",
            "fault"], ours, times, "recovered-takeover"))
    check.run_all(jobs)
    check.planned += 2
    if native and ours:
        check.add(within("loss", [s[0] for s in native], [s[0] for s in ours]))
        check.add(within("weight sum", [s[1] for s in native], [s[1] for s in ours]))
    for name, lines in times.items():
        check.notes += ["%-28s %s" % (name, line) for line in lines]
    return check.finish()


if __name__ == "__main__":
    harness.main(__doc__, section)
