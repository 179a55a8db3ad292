# SPDX-License-Identifier: Apache-2.0
"""What programs see of their memory with steering and without: the same (steering_program.cpp)."""

import difflib
import os
import pathlib
import subprocess
import unittest

GPURECOVER = os.environ["GPURECOVER"]
PROGRAM = os.environ["STEERING_PROGRAM"]
EXAMPLES = pathlib.Path(os.environ["EXAMPLES"])


def run(*app, options=(), memory=1 << 30):
    env = dict(os.environ, GPURECOVER_SOFT_MEMORY=str(memory))
    done = subprocess.run([GPURECOVER, "run", "--device", "soft", "-q", *options, "--", *map(str, app)],
                          capture_output=True, text=True, timeout=200, env=env)
    return done


class Steering(unittest.TestCase):
    def same(self, *app, **how):
        plain = run(*app, options=["--no-steer"], **how)
        steered = run(*app, **how)
        self.assertEqual(plain.returncode, 0, plain.stdout + plain.stderr)
        self.assertEqual(steered.returncode, 0, steered.stdout + steered.stderr)
        if plain.stdout != steered.stdout:
            self.fail("\n".join(difflib.unified_diff(plain.stdout.splitlines(), steered.stdout.splitlines(),
                                                     "--no-steer", "steered", lineterm="")))
        return steered

    def test_attributes_ranges_and_bad_frees(self):
        self.same(PROGRAM, "queries")

    def test_pinned_host_memory(self):
        self.same(PROGRAM, "host")

    def test_stream_ordered_memory(self):
        self.same(PROGRAM, "order")

    def test_a_full_device_and_going_on(self):
        self.same(PROGRAM, "full")

    def test_virtual_memory_of_the_programs_own(self):
        self.same(PROGRAM, "vmm")

    def test_threads(self):
        self.same(PROGRAM, "threads")

    def test_sharing_between_processes_is_refused_with_the_way_out(self):
        steered = run(PROGRAM, "sharing")
        self.assertIn("capable 0\n", steered.stdout)
        self.assertIn("cuIpcGetMemHandle)(&handle, a) = 801\n", steered.stdout)
        self.assertEqual(steered.stderr.count("--no-steer"), 1)
        plain = run(PROGRAM, "sharing", options=["--no-steer"])
        self.assertIn("cuIpcGetMemHandle)(&handle, a) = 0\n", plain.stdout)

    def test_steering_is_off_where_it_has_no_use(self):
        for options in ["--standby", "off"], ["--level", "observe"]:
            self.assertIn("capable 1\n", run(PROGRAM, "sharing", options=options).stdout)

    def test_every_example_has_the_same_result(self):
        programs = sorted(p for p in EXAMPLES.iterdir() if p.is_file() and os.access(p, os.X_OK)
                          and not p.name.endswith("_cudart"))
        self.assertGreaterEqual(len(programs), 9)
        for program in programs:
            with self.subTest(program.name):
                self.same(program, memory=4 << 30)


if __name__ == "__main__":
    unittest.main()
