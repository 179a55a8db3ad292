# SPDX-License-Identifier: Apache-2.0
"""Bad usage: 125, one clear answer with the remedy, nothing run."""
import unittest

from harness import Case, GPURECOVER, SOURCE, main


class Usage(Case):
    def refused(self, *words, says=()):
        mark = self.folder / "ran"
        done = self.gpurecover(*[str(mark) if w == "MARK" else w for w in words])
        text = done.stderr.decode()
        self.assertEqual(done.returncode, 125, text)
        self.assertEqual(done.stdout, b"")
        self.assertFalse(mark.exists())
        for part in says:
            self.assertIn(part, text)
        return text

    def test_missing_separator(self):
        self.refused("run", "ls", says=["gpurecover run -- ls"])
        self.refused("run", "-q", "ls", "-l", "a b", says=["gpurecover run -q -- ls -l 'a b'"])
        self.refused("run", "--name", "x", "ls", says=["gpurecover run --name x -- ls"])
        self.refused("inject", "-k", "foo", "--error", "ecc", "./app", "--size", "3",
                     says=["gpurecover inject -k foo --error ecc -- ./app --size 3"])

    def test_verbs(self):
        self.refused("rnu", "--", "ls", says=["did you mean 'run'"])
        self.refused("./app", "x", says=["gpurecover run -- ./app x"])
        self.refused("--", "./app", says=["gpurecover run -- ./app"])
        self.refused("--frobnicate", says=["--frobnicate"])
        self.refused(says=["gpurecover run -- "])
        self.refused("rules", says=["check, dump, explain"])
        self.refused("rules", "chekc", says=["did you mean 'check'"])

    def test_options(self):
        self.refused("run", "--reprot", "x", "--", "touch", "MARK", says=["did you mean '--report'"])
        self.refused("run", "--report", says=["--report"])
        self.refused("run", "--device", "gpu", "--", "touch", "MARK", says=["auto, cuda, soft"])
        self.refused("run", "--level", "ful", "--", "touch", "MARK", says=["did you mean 'full'"])
        self.refused("run", "--standby", "wram", "--", "touch", "MARK",
                     says=["did you mean 'warm'"])
        self.refused("run", "--standby", "warm", "--no-steer", "--", "touch", "MARK",
                     says=["--no-steer and --standby warm"])
        self.refused("run", "--name", "a/b", "--", "touch", "MARK", says=["--name"])
        self.refused("run", "--report", "a", "--report", "b", "--", "touch", "MARK",
                     says=["more than once"])
        self.refused("run", "--report", "a", "--events", "a", "--", "touch", "MARK",
                     says=["different"])
        self.refused("run", "--report", "/nonexistent/r.json", "--", "touch", "MARK",
                     says=["/nonexistent/r.json"])
        self.refused("run", "--report", "-", "--", "touch", "MARK", says=["stdout"])
        self.refused("run", "-q", "-v", "--", "touch", "MARK", says=["-q and -v"])
        self.refused("run", "--", says=["program"])
        self.refused("run", says=["which program?"])

    def test_not_in_this_version(self):
        for words in (["--epoch", "10s"], ["--hang-timeout", "1s"], ["--profile", "x"],
                      ["--max-overhead", "4"]):
            with self.subTest(words[0]):
                self.refused("run", *words, "--", "touch", "MARK",
                             says=[words[0], "not available in this version"])
        for words in (["verify", "--", "touch", "MARK"],
                      ["campaign", "x.toml"], ["doctor", "--", "touch", "MARK"],
                      ["classify", "--log", "x"]):
            with self.subTest(words[0]):
                self.refused(*words, says=["not available in this version"])

    def test_faults(self):
        def inject(*words, says):
            self.refused("inject", *words, "--", "touch", "MARK", says=says)

        inject("--error", "ecc", says=["--kernel PATTERN is required"])
        inject("-k", "foo", says=["--error KIND is required"])
        inject("-k", "foo", "--error", "eccc", says=["ecc"])
        inject("-k", "regex:(", "--error", "ecc", says=["--kernel"])
        inject("-k", "foo", "--error", "ecc", "--nth", "0", says=["--nth counts from 1"])
        inject("-k", "foo", "--error", "ecc", "--nth", "-1", says=["--nth"])
        inject("-k", "foo", "--error", "ecc", "--nth", "1", "--every", "2", says=["exclude"])
        inject("-k", "foo", "--error", "ecc", "--prob", "1.5", says=["--prob"])
        inject("-k", "foo", "--error", "ecc", "--prob", "nan", says=["--prob"])
        inject("-k", "foo", "--error", "ecc", "--damage", "wohle", says=["did you mean 'whole'"])
        inject("-k", "foo", "--error", "oom", "--how", "fault", says=["--how code"])
        inject("-k", "foo", "--error", "oom", "--how", "latch", says=["--how code"])
        inject("-k", "foo", "--error", "1", "--how", "fault", says=["--how code"])
        for kind in "ecc", "nvlink", "contained", "timeout", "CUDA_ERROR_ILLEGAL_INSTRUCTION":
            inject("-k", "foo", "--error", kind, "--how", "fault", "--device", "cuda",
                   says=["--device soft", "--how latch"])
        for how in "fault", "latch":
            inject("-k", "foo", "--error", "hang", "--how", how, says=["not available"])
            inject("-k", "foo", "--error", "bitflip", "--how", how, says=["not available"])
        inject("-k", "foo", "--error", "hang", says=["not available"])
        inject("-k", "foo", "--error", "bitflip", says=["not available"])
        inject("-k", "foo", "--error", "ecc", "--at", "blok=1", says=["block", "instr"])
        inject("-k", "foo", "--error", "ecc", "--at", "instr=", says=["instr=17"])
        inject("-k", "foo", "--error", "ecc", "--at", "instr=1,", says=["instr=17"])
        inject("-k", "foo", "--error", "oom", "--at", "instr=1", says=["never runs"])
        inject("-k", "foo", "--error", "ecc", "--at", "instr=1", "--device", "cuda",
               says=["--device soft"])
        inject("-k", "foo", "--error", "ecc", "--session", "s", says=["--session"])

    def test_rule_file_problems_name_their_place(self):
        rules = self.folder / "site.toml"
        rules.write_text('schema = 1\n[[rule]]\nid = "a"\nmatch.cuda = [214]\nacton = "replay"\n')
        done = self.gpurecover("rules", "check", str(rules))
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"{rules}:5:1".encode(), done.stdout + done.stderr)
        text = self.refused("run", "--rules", str(rules), "--", "touch", "MARK",
                            says=[f"{rules}:5:1"])
        self.assertIn("action", text)
        self.refused("run", "--rules", "/nonexistent.toml", "--", "touch", "MARK",
                     says=["/nonexistent.toml"])

    def test_built_in_rules_are_good(self):
        done = self.gpurecover("rules", "check", str(SOURCE / "configs" / "default.toml"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        dump = self.gpurecover("rules", "dump")
        self.assertEqual(dump.returncode, 0)
        copy = self.folder / "copy.toml"
        copy.write_bytes(dump.stdout)
        self.assertEqual(self.gpurecover("rules", "check", str(copy)).returncode, 0)
        self.assertEqual(self.gpurecover("rules", "check", "/nonexistent.toml").returncode, 2)

    def test_classify_answers(self):
        done = self.gpurecover("classify", "--cuda", "214")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"ECC", done.stdout)

    def test_help_and_version(self):
        for words in (["--help"], ["help"], ["run", "--help"], ["help", "inject"],
                      ["rules", "--help"], ["rules", "check", "--help"], ["run", "-h"]):
            with self.subTest(words):
                done = self.gpurecover(*words)
                self.assertEqual(done.returncode, 0)
                self.assertTrue(done.stdout.startswith(b"# gpurecover"))
                self.assertEqual(done.stderr, b"")
        self.assertRegex(self.gpurecover("--version").stdout.decode(), r"^gpurecover \d+\.\d+\.\d+\n$")

    def test_soft_without_the_soft_device(self):
        done = self.gpurecover("run", "--device", "soft", "--", "/bin/sh", "-c", "exit 3")
        if done.returncode == 3:
            self.skipTest("the software device is installed here")
        self.assertEqual(done.returncode, 125)
        self.assertIn(b"not installed", done.stderr)

    def test_doctor_says_what_is_missing(self):
        done = self.gpurecover("doctor")
        self.assertIn(done.returncode, (0, 1))
        self.assertIn(b"agent", done.stdout)
        self.assertEqual(done.returncode, 1 if b"missing" in done.stdout else 0)


if __name__ == "__main__":
    main()
