# SPDX-License-Identifier: Apache-2.0
"""Variables of modules across takeovers, on the device in software: see globals_program.cpp."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

GPURECOVER = os.environ["GPURECOVER"]
PROGRAM = os.environ["GLOBALS_PROGRAM"]
KERNELS = ["put", "part", "part", "fill", "mystery", "gather", "keep", "give",
           "put", "part", "part", "mystery", "gather", "keep", "give",
           "put", "part", "part", "fill", "gather", "give"]


def run(*inject, mode=()):
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        verb = ["inject", *inject] if inject else ["run"]
        done = subprocess.run(
            [GPURECOVER, *verb, "--device", "soft", "-q", "--report", str(report), "--", PROGRAM, *mode],
            capture_output=True, text=True, timeout=120)
        return done, json.loads(report.read_text())


class Variables(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.right = {}
        for mode, launches in ((), len(KERNELS)), (("moved",), len(KERNELS)), (("overlap",), 4):
            done, report = run(mode=mode)
            assert done.returncode == 0, done.stdout + done.stderr
            assert report["totals"]["launches"] == launches, report["totals"]
            cls.right[mode] = done.stdout

    def check(self, done, report, mode=()):
        """Right or an error, nothing else; the outcomes of the faults."""
        said = done.stdout + done.stderr + json.dumps(report["faults"], indent=1)
        if done.returncode == 0:
            self.assertEqual(done.stdout, self.right[mode], said)
        else:
            self.assertEqual(done.returncode, 3, said)
        return [fault["outcome"] for fault in report["faults"]], said

    def test_a_fault_at_every_launch(self):
        for kind in "ecc", "launch-failure":
            for nth, kernel in enumerate(KERNELS, 1):
                with self.subTest(f"{kind} {nth} {kernel}"):
                    outcomes, said = self.check(*run(
                        "--kernel", "*", "--nth", str(nth), "--error", kind, "--how", "fault"))
                    wanted = "refused" if kernel == "mystery" else "recovered-takeover"
                    self.assertEqual(outcomes, [wanted], said)

    def test_a_second_takeover(self):
        """The shadows are kept up to date by the standby's work too."""
        # The first takeover is over by the fourth launch.
        for nth, kernel in enumerate(KERNELS[3:], 4):
            with self.subTest(f"{nth} {kernel}"):
                outcomes, said = self.check(*run(
                    "--kernel", "*", "--nth", "1", "--error", "ecc", "--how", "fault",
                    mode=("kill", str(nth))))
                self.assertEqual(outcomes[0], "recovered-takeover", said)
                if kernel != "mystery":  # which may itself have been under way
                    self.assertEqual(outcomes[1:], ["recovered-takeover"], said)

    def test_what_is_issued_anew_is_over_before_another_stream_is_checked(self):
        outcomes, said = self.check(*run(
            "--kernel", "put", "--nth", "1", "--error", "ecc", "--how", "fault", mode=("overlap",)),
            mode=("overlap",))
        self.assertEqual(outcomes, ["recovered-takeover", "recovered-takeover"], said)

    def test_variables_that_come_to_lie_elsewhere(self):
        for nth in 1, 6, 20:
            with self.subTest(nth):
                outcomes, said = self.check(*run(
                    "--kernel", "*", "--nth", str(nth), "--error", "ecc", "--how", "fault",
                    mode=("moved",)), mode=("moved",))
                self.assertEqual(set(outcomes), {"declined"}, said)
                self.assertIn("lies elsewhere", said)


if __name__ == "__main__":
    unittest.main()
