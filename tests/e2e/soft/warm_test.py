# SPDX-License-Identifier: Apache-2.0
"""A warm standby that is kept up to date while the program runs, on the device in software: see
warm_program.cpp."""

import json
import os
import pathlib
import random
import re
import subprocess
import tempfile
import unittest

GPURECOVER = os.environ["GPURECOVER"]
PROGRAM = os.environ["WARM_PROGRAM"]
SOFT = os.environ["SOFTGPU_DIR"]
LAUNCHES = 7 * 6  # of a mode with all its rounds


def run(mode, *inject, standby="warm", waits=True, memory="0x30000000"):
    environment = dict(os.environ, GPURECOVER_SOFT_MEMORY=memory)
    if waits and standby == "warm":
        environment["WARM_PROGRAM_WAITS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        verb = ["inject", *inject, "--how", "fault"] if inject else ["run"]
        done = subprocess.run(
            [GPURECOVER, *verb, "--device", "soft", "-q", "--standby", standby, "--report",
             str(report), "--", PROGRAM, mode],
            capture_output=True, text=True, timeout=120, env=environment)
        return done, json.loads(report.read_text())


def alone(mode, memory="0x30000000"):
    done = subprocess.run([PROGRAM, mode], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, LD_LIBRARY_PATH=SOFT, GPURECOVER_SOFT_MEMORY=memory))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def at(nth, kind="launch-failure"):
    return "--kernel", "*", "--nth", str(nth), "--error", kind


class Warm(unittest.TestCase):
    def check(self, mode, right, *inject, recovered=1, **options):
        done, report = run(mode, *inject, **options)
        said = done.stdout + done.stderr + json.dumps(report["faults"], indent=1)
        self.assertEqual(done.returncode, 0, said)
        self.assertEqual(done.stdout, right, said)
        self.assertEqual([fault["outcome"] for fault in report["faults"]],
                         ["recovered-takeover"] * recovered, said)
        return done, report

    def used_the_warm_one(self, report):
        """A cold one has parts that a warm one does not have."""
        return "start.spawn" not in report["faults"][0]["steps"]

    def test_without_a_fault_nothing_is_different(self):
        for mode in "churn", "threads":
            with self.subTest(mode):
                self.check(mode, alone(mode), recovered=0)

    def test_faults_while_things_come_and_go(self):
        right = alone("churn")
        seed = int.from_bytes(os.urandom(4), "little") if os.environ.get("WARM_RANDOM") else 5
        nths = [1, 7, 8, LAUNCHES] + random.Random(seed).sample(range(9, LAUNCHES), 8)
        warm = 0
        for nth in nths:
            with self.subTest(f"launch {nth}, seed {seed}"):
                _, report = self.check("churn", right, *at(nth))
                warm += self.used_the_warm_one(report)
        # Variables and addresses are no matter here: whoever fell back on a cold one had no reason.
        self.assertEqual(warm, len(nths))
        for nth in 1, 3, 5, 6, 9, 22, LAUNCHES:  # what was never loaded is unloaded
            with self.subTest(f"cold, launch {nth}"):
                self.check("churn", right, *at(nth), standby="cold")

    def test_faults_while_threads_make_and_drop_memory(self):
        right = alone("threads")
        for nth in 8, 20, 33, 42:
            with self.subTest(nth):
                self.check("threads", right, *at(nth))

    def test_before_the_standby_is_there(self):
        """The fault comes right away, while the standby is still being started."""
        right = alone("churn")
        for nth in 1, 2, 6:
            with self.subTest(nth):
                self.check("churn", right, *at(nth), waits=False)

    def test_memory_errors(self):
        self.check("churn", alone("churn"), *at(20, "ecc"))

    def test_children_inherit_nothing(self):
        right = alone("fork")
        self.assertEqual(set(re.findall("descriptors=.*", right)), {"descriptors=0"})
        self.check("fork", right, recovered=0)
        self.check("fork", right, *at(30))

    def test_nothing_free_is_held_when_there_is_no_room(self):
        right = alone("oom")
        self.assertIn("ended=2 ", right)
        for inject, recovered in (((), 0), (at(38), 1)):
            done, _ = self.check("oom", right, *inject, recovered=recovered)
            self.assertIn("handed over: yes", done.stderr)
            self.assertNotIn("handed over: no", done.stderr)
            self.assertEqual(set(re.findall("stray shares: .*", done.stderr)), {"stray shares: 0"},
                             done.stderr)

    def test_a_standby_that_is_killed(self):
        right = alone("kill")
        self.check("kill", right, recovered=0)
        # Before its end, in the round in which it ends, and after it.
        for nth, warm in ((20, True), (31, False), (42, False)):
            with self.subTest(nth):
                _, report = self.check("kill", right, *at(nth), recovered=1 if not warm else 2)
                self.assertEqual(self.used_the_warm_one(report), warm)

    def test_exit_while_memory_is_handed_over(self):
        right = alone("exit")
        for _ in range(5):
            self.check("exit", right, recovered=0)


if __name__ == "__main__":
    unittest.main()
