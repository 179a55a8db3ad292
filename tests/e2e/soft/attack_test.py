# SPDX-License-Identifier: Apache-2.0
"""Unpleasant programs under faults, on the device in software: attack_program.cpp says what each is."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

GPURECOVER = os.environ["GPURECOVER"]
PROGRAM = os.environ["ATTACK_PROGRAM"]
ECC = 214
OUTCOMES = ("recovered", "returned", "refused", "declined", "not_fired", "silent")


class Run:
    def __init__(self, *mode, inject=None, options=(), shell=None):
        app = list(shell) if shell else [PROGRAM, *mode]
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            verb = ["inject", *inject] if inject else ["run"]
            done = subprocess.run(
                [GPURECOVER, *verb, "--device", "soft", "-q", "--report", str(report), *options, "--", *app],
                capture_output=True, text=True, timeout=120)
            self.summary = json.loads(report.read_text()) if report.exists() else None
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.said = dict(line.split("=", 1) for line in self.out.splitlines() if "=" in line)


class Attack(unittest.TestCase):
    def check(self, run, code=0):
        self.assertEqual(run.code, code, run.out + run.err)
        totals = run.summary["totals"]
        self.assertEqual(sum(totals[o] for o in OUTCOMES), totals["faults"])
        self.assertEqual(totals["protected"] + totals["unprotected"], totals["launches"])
        self.assertEqual(totals["idempotent"] + totals["clobbers"] + totals["unknown"], totals["launches"])
        return totals

    def every(self, kernel="twice", kind="ecc", count="--every", n="1"):
        return ["--kernel", kernel, "--error", kind, count, n, "--seed", "7"]

    def test_another_thread_never_sees_the_noise(self):
        for seed in "1", "2":
            run = Run("threads", inject=["--kernel", "twice", "--error", "ecc", "--every", "2", "--seed", seed])
            totals = self.check(run)
            self.assertEqual(run.said["wrong"], "0")
            self.assertEqual(totals["recovered"], totals["faults"])
            self.assertGreaterEqual(totals["faults"], 20)

    def test_every_form_of_launch_on_every_kind_of_stream(self):
        for kind in "ecc", "oom":
            totals = self.check(Run("forms", inject=self.every(kind=kind)))
            self.assertEqual(totals["recovered"], 25)

    def test_a_fault_that_comes_again_in_the_standby(self):
        """In the middle of a last check, which has filled what a launch may write with noise; the next
        standby goes on where that one ended."""
        self.assertEqual(Run("halves").code, 0)
        attempts = set()
        for first in 1, 2, 3:
            for again in range(1, 7):
                with self.subTest(first=first, again=again), tempfile.TemporaryDirectory() as folder:
                    # The program's own fault, and one of the first standby that comes so far.
                    os.environ["GPURECOVER_SOFT_FAULT"] = \
                        f"kernel=twice,launch={again},block=3,thread=1,instr=9,error={ECC},first={folder}/once"
                    try:
                        run = Run(shell=["env", f"GPURECOVER_SOFT_FAULT=launch={first},block=5,thread=2,instr=11,error={ECC}",
                                         PROGRAM, "halves"])
                    finally:
                        del os.environ["GPURECOVER_SOFT_FAULT"]
                    self.assertNotEqual(run.code, 1, "silently wrong: " + run.out + run.err)
                    record, = run.summary["faults"]
                    if run.code == 0:
                        self.assertEqual(record["outcome"], "recovered-takeover")
                        attempts.add(record["attempts"])
                        if pathlib.Path(folder, "once").exists() and record["attempts"] == 2:
                            self.assertTrue(record["repeats"])
                    else:
                        # It failed in a launch that was issued anew and waited for by nobody.
                        self.assertEqual((record["outcome"], record["repeats"]), ("returned", True), run.err)
        self.assertEqual(attempts, {1, 2})

    def test_a_refused_error_comes_once_and_what_follows_it_is_not_done(self):
        for look in "sync", "stream-query", "event-query", "copy", "free":
            with self.subTest(look):
                run = Run("ignores", look, inject=self.every("add_to", count="--nth"))
                self.assertEqual(self.check(run)["refused"], 1)
                self.assertEqual((run.said["launch"], run.said["first"], run.said["second"]), ("0", "214", "0"))
                self.assertEqual((run.said["called"], run.said["copied"]), ("0", "0"))

    def test_one_name_one_buffer_and_another_kernel(self):
        run = Run("reload", inject=self.every("same_name"))
        totals = self.check(run)
        self.assertEqual([run.said[f"round{i}"] for i in range(4)], ["0", "214", "0", "214"])
        self.assertEqual((totals["recovered"], totals["refused"]), (2, 2))

    def test_memory_under_two_addresses_is_not_replayed(self):
        run = Run("alias", inject=self.every())
        self.assertEqual(self.check(run)["refused"], 1)
        self.assertEqual(run.said["code"], "214")
        self.check(Run("alias"))

    def test_memory_that_the_program_maps_itself(self):
        """Before the fault it is handed over; afterwards it is mapped, and unmapped, in both processes. After a
        launch failure nothing runs any more; after a memory error all is unmapped first."""
        self.check(Run("mapped"))
        for kind in "launch-failure", "ecc":
            for how in "fault", "latch":
                for standby in "cold", "warm":
                    with self.subTest(kind=kind, how=how, standby=standby):
                        run = Run("mapped", inject=self.every(kind=kind, count="--nth") + ["--how", how],
                                  options=["--standby", standby])
                        self.assertEqual(self.check(run)["recovered"], 1)
                        self.assertEqual(run.summary["faults"][0]["outcome"], "recovered-takeover")

    def test_descriptors_that_the_program_takes_over_stay_its_own(self):
        for inject in None, self.every(count="--nth", n="3"):
            run = Run("close-all", inject=inject)
            self.assertEqual(run.code, 0, run.out + run.err)
            self.assertEqual((run.said["open"], run.said["written"]), ("1", "0"))

    def test_calls_from_destructors_at_a_threads_end(self):
        totals = self.check(Run("late", inject=self.every()))
        self.assertEqual(totals["recovered"], 21)

    def test_a_capture_is_recorded_as_it_is(self):
        run = Run("capture", inject=self.every("add_to"))
        if run.code == 77:
            self.skipTest("the device does not capture streams")
        self.check(run)

    def test_ways_to_end(self):
        for how, code in ("_exit", 23), ("abort", -signal.SIGABRT), ("segv", -signal.SIGSEGV), ("", 9):
            with self.subTest(how):
                run = Run("ends", how, inject=self.every())
                totals = self.check(run, code)
                self.assertEqual((totals["launches"], totals["recovered"]), (3, 3))
                self.assertEqual(run.said["good"], "1")

    def test_children(self):
        totals = self.check(Run("ends", "fork", inject=self.every()))
        self.assertEqual((totals["launches"], totals["recovered"]), (4, 4))
        run = Run("ends", "exec", inject=self.every())
        self.assertEqual(self.check(run)["launches"], 4 + 25)
        self.assertEqual(run.said["child"], "0")

    def test_few_descriptors(self):
        for limit in 5, 6, 7, 8, 12:
            run = Run(shell=["/bin/sh", "-c", f"ulimit -n {limit} && exec '{PROGRAM}' ends x"])
            with self.subTest(limit):
                self.assertIn(run.code, (9, 2, 77), run.err)
                if run.code == 9:
                    self.assertEqual(run.said["good"], "1")

    def test_stop_ends_recovery(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as rules:
            rules.write('schema = 1\n[[rule]]\nid = "halt"\nmatch.cuda = [220]\naction = "stop"\nclass = "hardware"\n'
                        '[[rule]]\nid = "ecc"\nmatch.cuda = [214]\naction = "replay"\nmax_attempts = 1\n'
                        'class = "hardware"\n')
            rules.flush()
            run = Run("forms", options=["--rules", rules.name],
                      inject=["--kernel", "twice", "--error", "nvlink", "--nth", "1"])
            self.assertEqual(run.code, 2, run.out + run.err)
            self.assertEqual(run.summary["totals"]["returned"], 1)
            self.assertIn(":220", run.out)

    def test_a_bug_of_the_programs_own_comes_back_with_the_kernels_name(self):
        run = Run("stray")
        totals = self.check(run)
        self.assertEqual((run.said["first"], run.said["second"]), ("700", "700"))
        self.assertEqual((totals["faults"], totals["returned"]), (1, 1))
        fault = run.summary["faults"][0]
        self.assertEqual((fault["kernel"], fault["launch"], fault["injected"]), ("twice", 1, False))
        self.assertIn("the program itself may be the cause", fault["reason"])

    def test_sticky_faults(self):
        # At every launch that matches, as far as there are any; what is taken over ends well.
        for mode in ["forms"], ["threads"], ["late"], ["ends", "x"], ["ends", "fork"]:
            undisturbed = Run(*mode).code
            for how in "fault", "latch":
                for nth in "1", "2", "3":
                    with self.subTest(" ".join([*mode, how, nth])):
                        run = Run(*mode, inject=["--kernel", "twice", "--error", "ecc", "--how", how, "--nth", nth])
                        outcome = run.summary["faults"][0]["outcome"]
                        self.assertIn(outcome, ("recovered-takeover", "refused", "declined"))
                        if outcome == "recovered-takeover":
                            self.check(run, undisturbed)
                            self.assertNotIn("failed", run.said, run.err)
                            self.assertEqual(run.said.get("good", "1"), "1")
                            self.assertEqual(run.said.get("wrong", "0"), "0")
                        else:
                            self.assertIn(":214", run.out)

    def test_modules_loaded_after_a_takeover(self):
        for how in "fault", "latch":
            run = Run("reload", inject=["--kernel", "same_name", "--error", "ecc", "--how", how, "--nth", "1"])
            self.check(run)
            self.assertEqual(run.summary["faults"][0]["outcome"], "recovered-takeover")
            self.assertEqual(run.said["good"], "1")

    def test_the_supervisor_is_killed(self):
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(
                [GPURECOVER, "inject", *self.every(), "--device", "soft", "-q", "--", PROGRAM, "orphan"],
                stdout=out, stderr=subprocess.PIPE, text=True)
            err = process.stderr.read()  # until the app has ended too
            self.assertEqual(process.wait(), -signal.SIGKILL)
            out.seek(0)
            self.assertIn("good=1", out.read(), err)
            self.assertEqual(err.count("the connection to the supervisor is gone"), 1, err)


if __name__ == "__main__":
    unittest.main()
