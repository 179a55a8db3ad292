# SPDX-License-Identifier: Apache-2.0
"""Run summary, event log and what is made from them."""
import json
import os
import stat
import unittest
import xml.etree.ElementTree as xml

from harness import Case, FAKE_AGENT, SOURCE, main

try:
    import jsonschema
except ImportError:
    jsonschema = None

# Two processes of the session: the same kernel in both, worse in the second.
TWO = ("connect", "attach", "kernel|1|saxpy|0|bounded", "kernel|2|hist|1||arg1 is read and written",
       "launch|1|0|1|90", "launch|2|1|0|6", "reason|0|clobbers its input|6", "call|3|cuFooBar|4",
       "fork", "connect", "attach", "kernel|1|saxpy|2||indirect call", "launch|1|2|0|3",
       "launch|1|0|1|1", "launch|0|0|1|2", "reason|5|indirect call|3")


class Report(Case):
    def check_schema(self, summary):
        if jsonschema is None:
            self.skipTest("python3-jsonschema is not installed")
        schema = json.loads((SOURCE / "docs" / "schema" / "run.schema.json").read_text())
        jsonschema.Draft7Validator.check_schema(schema)
        jsonschema.Draft7Validator(schema).validate(summary)

    def check_totals(self, summary):
        t = summary["totals"]
        self.assertEqual(t["idempotent"] + t["clobbers"] + t["unknown"], t["launches"])
        self.assertEqual(t["protected"] + t["unprotected"], t["launches"])
        self.assertEqual(t["recovered"] + t["returned"] + t["refused"] + t["declined"] +
                         t["not_fired"] + t["silent"], t["faults"])
        self.assertEqual(t["kernels"], len(summary["kernels"]))
        self.assertEqual(sum(k["launches"] for k in summary["kernels"]), t["launches"])

    def test_summary_of_two_processes(self):
        done, summary = self.agent(*TWO)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check_schema(summary)
        self.check_totals(summary)
        self.assertEqual(summary["schema"], "gpurecover.run/1")
        self.assertEqual(summary["command"], [FAKE_AGENT, *TWO])
        t = summary["totals"]
        self.assertEqual((t["launches"], t["idempotent"], t["clobbers"], t["unknown"],
                          t["protected"], t["unprotected"]), (102, 93, 6, 3, 93, 9))
        kernels = {k["name"]: k for k in summary["kernels"]}
        self.assertEqual(set(kernels), {"saxpy", "hist", "(other kernels)"})
        self.assertEqual(kernels["saxpy"]["launches"], 94)
        self.assertEqual(kernels["saxpy"]["verdict"], "unknown")
        self.assertEqual(kernels["saxpy"]["reason"], "indirect call")
        self.assertEqual(kernels["hist"]["verdict"], "clobbers")
        self.assertEqual(kernels["saxpy"]["reads"], ["arg0"])
        self.assertEqual(summary["unprotected_reasons"], {"clobbers its input": 6,
                                                          "indirect call": 3})
        self.assertEqual(summary["calls_without_row"], {"cuFooBar": 4})
        self.assertEqual([p["launches"] for p in summary["processes"]], [96, 6])
        self.assertEqual(summary["device"], {"kind": "soft", "name": "Fake device",
                                             "driver": "13.0", "cc": "9.0"})
        self.assertEqual(summary["exit"], {"code": 0, "signal": None, "origin": "app"})
        self.assertIn(b"102 launches of 3 kernels, 93 protected (91.2%)", done.stderr)
        self.assertIn(b"not protected: 6 launches: clobbers its input", done.stderr)
        self.assertIn(b"cuFooBar", done.stderr)

    def test_every_outcome_has_its_total(self):
        outcomes = {"recovered-replay": "recovered", "recovered-takeover": "recovered",
                    "recovered-epoch": "recovered", "returned": "returned", "refused": "refused",
                    "declined": "declined", "silent": "silent"}
        for outcome, total in outcomes.items():
            with self.subTest(outcome):
                done, summary = self.agent("connect", "attach", f"fault|{outcome}|k|0", "exit|7")
                self.assertEqual(done.returncode, 7)
                self.check_schema(summary)
                self.check_totals(summary)
                self.assertEqual(summary["totals"][total], 1)
                self.assertEqual(summary["faults"][0]["outcome"], outcome)

    def test_injected_fault_says_how_to_repeat_it(self):
        options = ("-k", "saxpy", "--error", "ecc", "--nth", "3", "--level", "replay")
        done, summary = self.agent("connect", "attach", "matched|0|5", "fired|0|1",
                                   "fault|refused|saxpy|1", verb="inject", options=options)
        fault = summary["faults"][0]
        self.assertEqual(summary["totals"]["faults"], 1)
        self.assertEqual(fault["reason"], "it clobbers arg0")
        self.assertTrue(fault["repeat"].startswith(
            "gpurecover inject --kernel saxpy --error ecc --nth 3 --seed 9 --level replay -- "))
        self.assertIn(("repeat it: " + fault["repeat"]).encode(), done.stderr)
        self.assertIn(b"refused: it clobbers arg0", done.stderr)

    def test_not_fired_is_told_even_if_quiet(self):
        options = ("-q", "-k", "saxpy", "--error", "ecc", "--nth", "9", "--seed", "77")
        done, summary = self.agent("connect", "attach", "matched|0|4", verb="inject",
                                   options=options)
        self.assertEqual(done.returncode, 0)
        self.check_schema(summary)
        self.check_totals(summary)
        fault = summary["faults"][0]
        self.assertEqual((fault["outcome"], fault["kernel"], fault["code"], fault["phase"]),
                         ("not-fired", "saxpy", 214, "run"))
        self.assertIn("4 launches matched", fault["reason"])
        self.assertIn("--nth 9 --seed 77", fault["repeat"])
        self.assertIn(b"the fault was not injected", done.stderr)
        # And without any CUDA at all.
        done = self.run_app("/bin/true", verb="inject", options=options)
        self.assertIn(b"no launch matched --kernel saxpy", done.stderr)

    def test_fired_in_one_of_two_processes_is_fired(self):
        _, summary = self.agent("connect", "attach", "matched|0|1", "fork", "connect", "attach",
                                "matched|0|3", "fired|0|1", "fault|recovered-replay|k|1",
                                verb="inject", options=("-k", "k", "--error", "ecc", "--nth", "3"))
        self.assertEqual(summary["totals"]["not_fired"], 0)
        self.assertEqual(summary["totals"]["recovered"], 1)

    def test_fired_without_a_word_is_told(self):
        done, _ = self.agent("connect", "attach", "matched|0|1", "fired|0|1", verb="inject",
                             options=("-q", "-k", "k", "--error", "ecc"))
        self.assertIn(b"1 injected fault fired without a word", done.stderr)

    def test_seed_is_echoed(self):
        done = self.run_app("/bin/true", verb="inject", options=("-q", "-k", "k", "--error", "ecc"))
        self.assertRegex(done.stderr.decode(), r"gpurecover: seed \d+\n")

    def test_passive_process(self):
        done, summary = self.agent("connect", "passive|another tool holds CUPTI")
        self.assertIn(b"runs unprotected: another tool holds CUPTI", done.stderr)
        self.assertEqual(summary["processes"][0]["active"], False)
        self.assertEqual(summary["processes"][0]["reason"], "another tool holds CUPTI")

    def test_notices(self):
        steps = ("connect", "notice|0|for info", "notice|1|a warning", "notice|1|a warning",
                 "notice|2|an error\nof two lines\x1b[2J")
        done, _ = self.agent(*steps)
        text = done.stderr.decode()
        self.assertIn("gpurecover: for info\n", text)
        self.assertEqual(text.count("gpurecover: a warning\n"), 1)
        self.assertIn("gpurecover: an error\ngpurecover: of two lines?[2J\n", text)
        done, _ = self.agent(*steps, options=("-q",))
        self.assertNotIn(b"for info", done.stderr)
        self.assertIn(b"a warning", done.stderr)

    def test_names_that_are_no_text(self):
        done, summary = self.agent("connect", "attach", b"kernel|1|\xff\xfe|0|bounded",
                                   "launch|1|0|1|1")
        self.check_totals(summary)
        self.assertEqual(summary["kernels"][0]["name"], "\ufffd\ufffd")

    def test_old_report_is_removed_at_the_start(self):
        report = self.folder / "run.json"
        events = self.folder / "run.jsonl"
        report.write_text("old")
        events.write_text("old\n")
        done = self.run_app("/bin/sh", "-c", f"[ -e {report} ] && exit 3; exit 0",
                            options=("--report", str(report), "--events", str(events)))
        self.assertEqual(done.returncode, 0)
        self.check_schema(json.loads(report.read_text()))
        self.assertNotIn("old", events.read_text())
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()),
                         ["run", "run.json", "run.jsonl"])

    def test_report_through_a_link_and_to_a_device(self):
        real = self.folder / "real.json"
        real.write_text("old")
        link = self.folder / "link.json"
        link.symlink_to(real)
        self.run_app("/bin/true", options=("--report", str(link)))
        self.assertTrue(link.is_symlink())
        self.check_schema(json.loads(real.read_text()))
        self.run_app("/bin/true", options=("--report", "/dev/null", "--events", "/dev/full"))
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/full").st_mode))

    def test_report_that_cannot_be_written_any_more(self):
        gone = self.folder / "gone"
        gone.mkdir()
        done = self.run_app("/bin/sh", "-c", f"rmdir {gone}; exit 4",
                            options=("--report", str(gone / "r.json")))
        self.assertEqual(done.returncode, 4)
        self.assertIn(b"no report: ", done.stderr)

    def test_events(self):
        events = self.folder / "run.jsonl"
        self.agent(*TWO, "fault|recovered-replay|saxpy|0", "notice|1|careful",
                   options=("--events", str(events)))
        lines = [json.loads(line) for line in events.read_text().splitlines()]
        self.assertEqual([line["seq"] for line in lines], list(range(1, len(lines) + 1)))
        self.assertEqual(lines, sorted(lines, key=lambda line: line["mono_s"]))
        for line in lines:
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
        kinds = [line["event"] for line in lines]
        self.assertEqual(kinds[0], "start")
        self.assertEqual(kinds[-1], "exit")
        for kind in ("process", "attached", "kernel", "call-without-row", "fault", "notice"):
            self.assertIn(kind, kinds)
        fault = next(line for line in lines if line["event"] == "fault")
        self.assertEqual(fault["outcome"], "recovered-replay")
        self.assertEqual(fault["class"], "hardware")


class Rendering(Case):
    def summary(self):
        _, summary = self.agent(*TWO, "fault|recovered-replay|a<b>&|1", "fault|refused|x\"y|1",
                                verb="inject", options=("-k", "nobody", "--error", "ecc"))
        return self.folder / "run.json", summary

    def render(self, path, fmt, *more):
        done = self.gpurecover("report", str(path), "--format", fmt, *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_json_is_the_summary(self):
        path, summary = self.summary()
        self.assertEqual(json.loads(self.render(path, "json")), summary)

    def test_junit(self):
        path, _ = self.summary()
        root = xml.fromstring(self.render(path, "junit"))
        suite = root.find("testsuite")
        self.assertEqual((suite.get("tests"), suite.get("failures"), suite.get("skipped")),
                         ("4", "1", "1"))
        cases = suite.findall("testcase")
        self.assertEqual(cases[0].get("name"), "program")
        self.assertIsNotNone(cases[1].find("flakyFailure"))
        self.assertIn("a<b>&", cases[1].get("name"))
        self.assertIn("repeat: gpurecover inject", cases[2].find("failure").text)
        self.assertIsNotNone(cases[3].find("skipped"))

    def test_junit_of_a_failed_program(self):
        report = self.folder / "r.json"
        for script, says in (("exit 3", "exit status 3"), ("kill -9 $$", "killed by signal 9")):
            self.run_app("/bin/sh", "-c", script, options=("--report", str(report)))
            root = xml.fromstring(self.render(report, "junit"))
            self.assertEqual(root.find(".//failure").get("message"), says)

    def test_markdown(self):
        path, _ = self.summary()
        text = self.render(path, "markdown").decode()
        self.assertIn("## Faults", text)
        self.assertIn("## Kernels", text)
        self.assertIn("a\\<b\\>\\&", text)
        self.assertIn("| saxpy | 94 | unknown |", text)

    def test_output_file(self):
        path, summary = self.summary()
        out = self.folder / "out.xml"
        self.render(path, "junit", "--output", str(out))
        xml.fromstring(out.read_text())
        self.render(path, "json", "--output", str(path))
        self.assertEqual(json.loads(path.read_text()), summary)

    def test_later_formats_say_so(self):
        path, _ = self.summary()
        for fmt in ("html", "prometheus"):
            done = self.gpurecover("report", str(path), "--format", fmt)
            self.assertEqual(done.returncode, 125)
            self.assertIn(b"not available in this version", done.stderr)

    def test_bad_input(self):
        path, summary = self.summary()

        def broken(**changes):
            return json.dumps({**summary, **changes})

        totals = dict(summary["totals"])
        cases = {
            "": "not JSON",
            "{\n\n]": "line 3: not JSON",
            "[" * 100000: "nested too deeply",
            "[]": "not a JSON object",
            "{}": "schema is missing",
            broken(schema="gpurecover.run/2"): "gpurecover.run/2",
            broken(schema="gpurecover.campaign/1"): "campaign",
            broken(totals={**totals, "launches": -1}): "totals.launches must be a whole number",
            broken(totals={**totals, "launches": "x"}): "totals.launches must be a whole number",
            broken(totals={**totals, "launches": totals["launches"] + 1}): "add up to",
            broken(totals={**totals, "faults": 99}): "faults is 99",
            broken(kernels={}): "kernels must be a list",
            broken(kernels=[1]): "kernels[0] must be an object",
            broken(kernels=[{"name": 1}]): "kernels[0].name must be a string",
            broken(faults=[{**summary["faults"][0], "outcome": "fine"}]): "'fine' is no outcome",
            broken(exit={"code": 99999999999, "signal": None, "origin": "app"}): "out of range",
        }
        bad = self.folder / "bad.json"
        for text, says in cases.items():
            with self.subTest(says):
                bad.write_text(text)
                done = self.gpurecover("report", str(bad), "--format", "markdown")
                self.assertEqual(done.returncode, 125)
                self.assertIn(says, done.stderr.decode())
                self.assertTrue(done.stderr.startswith(f"gpurecover: {bad}: ".encode()))
        done = self.gpurecover("report", "/nonexistent.json", "--format", "json")
        self.assertEqual(done.returncode, 125)
        self.assertIn(b"/nonexistent.json", done.stderr)


if __name__ == "__main__":
    main()
