# SPDX-License-Identifier: Apache-2.0
"""Faults of the device itself that are noticed much later: a launch dies while others wait behind it.

The examples run with nothing waiting for a launch but what the program waits for itself; the device
in software fails in the middle of launch k, for every k (ASYNC_FAULTS=all) or for some. The result
must be that of the undisturbed run, or the program must get the error. Seeds: the points in the
kernels follow from the launch's number."""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

GPURECOVER = os.environ["GPURECOVER"]
EXAMPLES = pathlib.Path(os.environ["EXAMPLES"])
ALL = os.environ.get("ASYNC_FAULTS") == "all"
ECC = 214
# Launches of each, at the size below.
IDEMPOTENT = {"vector_add": 4, "heat2d": 60, "gemm_tiled": 4, "two_streams": 12, "many_small": 90,
              "alloc_churn": 16}
OTHERS = {"saxpy_inplace": 6, "histogram_atomic": 5, "pointer_table": 4}
OPTIONS = {"heat2d": ["--size", "64", "--steps", "60"], "many_small": ["--launches", "90"]}


def some(launches):
    return range(1, launches + 1) if ALL else sorted({1, 2, 5, launches // 2, launches} & set(range(1, launches + 1)))


def run(example, fault=None, options=()):
    app = [str(EXAMPLES / example), *OPTIONS.get(example, ["--size", "64"])]
    if fault:
        # Of the program alone: the standby's device is another one.
        app = ["env", f"GPURECOVER_SOFT_FAULT={fault}", *app]
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        done = subprocess.run([GPURECOVER, "run", "--device", "soft", "--report", str(report), *options, "--", *app],
                              capture_output=True, text=True, timeout=300)
        summary = json.loads(report.read_text())
    return done, summary


def point(k, code=ECC):
    return f"launch={k},block=0,thread={k % 13},instr={1 + k % 7},error={code}"


class AsynchronousFaults(unittest.TestCase):
    def each(self, cases, check):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            done = pool.map(lambda case: (case, run(case[0], point(case[1]), case[2])), cases)
            for case, (process, summary) in done:
                with self.subTest(example=case[0], launch=case[1], options=case[2]):
                    check(case, process, summary)

    def test_what_is_idempotent_is_recovered(self):
        wanted = {example: run(example, options=("--standby", "off"))[0] for example in IDEMPOTENT}
        for example, process in wanted.items():
            self.assertEqual(process.returncode, 0, process.stderr)

        def check(case, process, summary):
            self.assertEqual((process.returncode, process.stdout), (0, wanted[case[0]].stdout), process.stderr)
            self.assertEqual([f["outcome"] for f in summary["faults"]], ["recovered-takeover"], process.stderr)
            self.assertEqual(summary["faults"][0]["code"], ECC)
            self.assertFalse(summary["faults"][0]["injected"])

        self.each([(example, k, ("--standby", "cold")) for example, launches in IDEMPOTENT.items()
                   for k in some(launches)], check)
        self.each([(example, launches // 2, options) for example, launches in IDEMPOTENT.items()
                   for options in (("--standby", "warm"), ("--level", "replay"))], check)

    def test_what_is_not_gets_its_error(self):
        def check(case, process, summary):
            self.assertEqual(process.returncode, 1, process.stdout)
            self.assertIn("CUDA error 214", process.stderr)
            self.assertEqual([f["outcome"] for f in summary["faults"]], ["refused"], process.stderr)

        self.each([(example, k, ()) for example, launches in OTHERS.items() for k in some(launches)], check)

    def test_a_real_address_fault(self):
        """Of a program whose every access is proved in bounds it is none of its doing; else it may be."""
        wanted = run("many_small", options=("--standby", "off"))[0].stdout
        for k in some(90):
            process, summary = run("many_small", point(k, 700), ())
            self.assertEqual((process.returncode, process.stdout), (0, wanted), process.stderr)
            self.assertEqual([f["outcome"] for f in summary["faults"]], ["recovered-takeover"], process.stderr)
        for k in some(4):
            process, summary = run("pointer_table", point(k, 700), ())
            self.assertEqual(process.returncode, 1)
            self.assertEqual([f["outcome"] for f in summary["faults"]], ["returned"], process.stderr)
            # The name of the kernel in question is there all the same.
            self.assertNotEqual(summary["faults"][0]["kernel"], "(not known)")


if __name__ == "__main__":
    unittest.main()
