# SPDX-License-Identifier: Apache-2.0
"""Real and latched faults on the device in software: what the program sees, and what is reported."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

GPURECOVER = os.environ["GPURECOVER"]
PROGRAM = os.environ["STICKY_CALLS"]
KINDS = {"ecc": 214, "nvlink": 220, "contained": 226, "illegal-address": 700, "timeout": 702,
         "assert": 710, "misaligned": 716, "launch-failure": 719}
# Without a standby: what the program is told is asked about, not whether it is saved from it.
ALONE = ("--standby", "off")


class Run:
    def __init__(self, *inject, options=ALONE, app=PROGRAM):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            verb = ["inject", *inject] if inject else ["run"]
            done = subprocess.run([GPURECOVER, *verb, "--device", "soft", "--report", str(report), *options,
                                   "--", app], capture_output=True, text=True, timeout=120)
            self.summary = json.loads(report.read_text()) if report.exists() else None
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.lines = [line.rsplit(" | ", 1) for line in self.out.splitlines()]


def fault(kind, how, *more):
    return ("--kernel", "victim", "--error", kind, "--how", how, "--seed", "5", *more)


class Sticky(unittest.TestCase):
    def reported(self, run, code):
        self.assertEqual(run.status, 0, run.out + run.err)
        self.assertEqual(len(run.summary["faults"]), 1, run.err)
        record = run.summary["faults"][0]
        self.assertEqual((record["code"], record["injected"], record["kernel"], record["launch"],
                          record["phase"]), (code, True, "victim", 1, "run"))
        self.assertIn("gpurecover inject --kernel", record["repeat"])
        self.assertEqual(run.summary["totals"]["not_fired"], 0)
        return record

    def test_a_latched_error_looks_like_a_real_one(self):
        healthy = Run()
        self.assertEqual((healthy.status, healthy.summary["totals"]["faults"]), (0, 0), healthy.out + healthy.err)
        self.assertIn("a host function ran", healthy.out.splitlines())
        for kind, code in KINDS.items():
            with self.subTest(kind):
                real, latched = Run(*fault(kind, "fault")), Run(*fault(kind, "latch"))
                for run in real, latched:
                    record = self.reported(run, code)
                    # The rules return an assert; the others are declined for want of another process.
                    self.assertEqual(record["outcome"], "returned" if kind == "assert" else "declined")
                self.assertGreater(len(real.lines), 90)
                self.assertEqual(real.lines, latched.lines)
                self.assertEqual(real.lines[0][1], "0")
                self.assertEqual({line[1] for line in real.lines[1:4]}, {str(code)})
                self.assertIn(["untouched", "0"], real.lines)
                self.assertNotIn(["a host function ran"], real.lines)
                sticky = sum(line[1] == str(code) for line in real.lines)
                self.assertGreater(sticky, 55)

    def test_the_repeat_line_repeats(self):
        for how in "fault", "latch":
            record = self.reported(Run(*fault("ecc", how)), 214)
            self.assertIn(f"--how {how}", record["repeat"])

    def test_a_point_in_the_kernel(self):
        for how in "fault", "latch":
            with self.subTest(how):
                self.reported(Run(*fault("launch-failure", how, "--at", "block=3,thread=7,instr=5")), 719)
                run = Run(*fault("launch-failure", how, "--at", "block=3,thread=7,instr=500"))
                self.assertEqual(run.summary["totals"]["not_fired"], 1)
                self.assertEqual([f["outcome"] for f in run.summary["faults"]], ["not-fired"])

    def test_strict_gives_an_address_fault_back(self):
        for how in "fault", "latch":
            record = self.reported(Run(*fault("illegal-address", how, "--strict")), 700)
            self.assertEqual(record["outcome"], "returned")

    def test_every_damage(self):
        for damage in "none", "whole", "partial", "scribble":
            with self.subTest(damage):
                self.reported(Run(*fault("contained", "latch", "--damage", damage)), 226)

    def test_only_the_first_error_counts(self):
        for how in "fault", "latch":
            run = Run("--kernel", "*", "--error", "nvlink", "--how", how, "--every", "1", "--seed", "5", options=ALONE)
            self.reported(run, 220)


if __name__ == "__main__":
    unittest.main()
