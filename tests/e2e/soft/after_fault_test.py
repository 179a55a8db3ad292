# SPDX-License-Identifier: Apache-2.0
"""The questions of tests/gpu/after_fault, asked of the device in software: whatever a program passes
to a driver whose context is dead, it gets an answer and lives; and what has to outlive a fault does."""

import os
import subprocess
import unittest

PROGRAM = os.environ["AFTER_FAULT"]
SOFT = os.environ["SOFTGPU_DIR"]


class AfterFault(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        done = subprocess.run(
            [PROGRAM], capture_output=True, text=True, timeout=250,
            env=dict(os.environ, LD_LIBRARY_PATH=SOFT, GPURECOVER_CUPTI=SOFT + "/libcupti.so.13", AFTER_FAULT_JOBS="2",
                     AFTER_FAULT_COUNT="2000000"))
        assert done.returncode == 0, done.stderr
        cls.answers = {}
        for line in done.stdout.splitlines():
            section, question, answer = line.split(" | ")
            cls.answers.setdefault(section, {})[question] = answer

    def test_every_section_ran(self):
        self.assertEqual(len(self.answers), 17)
        for section, answers in self.answers.items():
            self.assertFalse([question for question in answers if question.startswith("SETUP")], section)
            if section.startswith("b-sweep"):
                self.assertGreater(len(answers), 500)

    def test_nothing_crashes_or_hangs(self):
        # A copy reads the host memory that the program names, as any driver does.
        reads = "cuMemcpyHtoDAsync(W.buffer, unknown<void*>(), 64, W.stream)"
        for section, answers in self.answers.items():
            for question, answer in answers.items():
                if (section, question) != ("a-handles-straight-healthy", reads):
                    self.assertNotRegex(answer, "signal|exit|no answer", f"{section}: {question}")

    def test_unknown_handles_get_the_faults_code(self):
        for way in "straight", "zeroed":
            answers = self.answers[f"a-handles-{way}-faulted"]
            for question in "launch(F, W.stream)", "cuStreamSynchronize(S)", "cuEventQuery(E)", "cuModuleUnload(M)":
                self.assertEqual(answers[question], "719")

    def test_nothing_runs_once_a_fault_is_reported(self):
        answers = self.answers["f-drained"]
        self.assertEqual(len(answers), 18)
        for question, answer in answers.items():
            self.assertRegex(answer, r"^7(00|16|19) after .*, then \+0 in 20 ms, \+0 in 500 ms", question)

    def test_memory_is_handed_over(self):
        said = self.answers["e-export"]
        for call in ("cuMemRetainAllocationHandle", "cuMemUnmap", "cuMemExportToShareableHandle",
                     "importer: cuMemImportFromShareableHandle", "importer: cuMemMap", "importer: wrong words",
                     "cuMemRelease"):
            self.assertEqual(said[call], "0", call)
        self.assertEqual(said["fault"], "719")
        # What the dying kernel wrote is there, beside what it had not come to.
        self.assertGreater(int(said["importer: words of the dying kernel"]), 0)
        self.assertEqual(int(said["importer: words of the dying kernel"]) + int(said["importer: words from before it"]),
                         1 << 19)

    def test_markers_name_the_last_completed_launch(self):
        said = self.answers["f-markers"]
        for where in "cuMemHostAlloc", "registered file":
            for at in 1, 4, 5, 8:
                key = f"{where}, trap at {at}: code, last launch whose marker is there"
                self.assertEqual(said[key], f"719, {at - 1}")


if __name__ == "__main__":
    unittest.main()
