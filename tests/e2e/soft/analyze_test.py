# SPDX-License-Identifier: Apache-2.0
"""The offline stage on the device in software: what is found is stored, used, and never in the way."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

GPURECOVER = os.environ["GPURECOVER"]
SOURCE = pathlib.Path(os.environ["GPURECOVER_SOURCE"])
BUILD = pathlib.Path(os.environ["GPURECOVER_BUILD"])
EXAMPLE = pathlib.Path(os.environ["EXAMPLES"]) / "vector_add"
CMAKE = os.environ["CMAKE_COMMAND"]


def call(*words, **options):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=240,
                          **options)


class Analyze(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gr-", dir="/tmp")).resolve()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.app = self.folder / "app"
        shutil.copy(EXAMPLE, self.app)
        self.side = self.folder / "app.gpurecover.json"

    def analyze(self, *words, status=0):
        done = call(GPURECOVER, "analyze", *words)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def run_app(self, *options, app=None):
        report = self.folder / "report.json"
        done = call(GPURECOVER, "run", "--device", "soft", "--report", report, *options, "--",
                    app or self.app)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        summary = json.loads(report.read_text())
        return done, summary["kernels"], summary["totals"]

    def facts(self, kernels):
        return [{k: v for k, v in kernel.items() if k != "analysis"} for kernel in kernels]

    def test_stored_beside_the_program_and_used(self):
        alone, before, totals = self.run_app()
        self.assertNotIn("analysis", before[0])
        said = self.analyze(self.app).stdout
        for part in ("vector_add", "PTX for sm_70", "arg0: ", "; exact"):
            self.assertIn(part, said)
        stored = json.loads(self.side.read_text())
        self.assertEqual(stored["schema"], "gpurecover.analysis/1")
        done, kernels, with_totals = self.run_app()
        self.assertEqual(done.stdout, alone.stdout)
        self.assertEqual(kernels[0]["analysis"], str(self.side))
        self.assertEqual(self.facts(kernels), self.facts(before))
        self.assertEqual(with_totals, totals)
        # A fault is recovered from by what the side file says.
        report = self.folder / "fault.json"
        done = call(GPURECOVER, "inject", "--device", "soft", "--kernel", "*", "--error", "ecc",
                    "--how", "code", "--report", report, "--", self.app)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, alone.stdout)
        summary = json.loads(report.read_text())
        self.assertTrue(summary["faults"][0]["outcome"].startswith("recovered"))
        self.assertEqual(summary["kernels"][0]["analysis"], str(self.side))

    def test_a_folder_of_them(self):
        there = self.folder / "analysis"
        self.analyze("-q", "-o", there, self.app)
        self.assertFalse(self.side.exists())
        self.assertNotIn("analysis", self.run_app()[1][0])
        kernels = self.run_app("--analysis-dir", there)[1]
        self.assertEqual(kernels[0]["analysis"], str(there / "app.gpurecover.json"))
        done = call(GPURECOVER, "run", "--analysis-dir", self.folder / "no", "--", "true")
        self.assertEqual(done.returncode, 125)
        self.assertIn("analyze -o DIR", done.stderr)

    def test_one_that_does_not_fit_is_as_if_it_were_not_there(self):
        alone, before, _ = self.run_app()
        self.analyze("-q", self.app)
        good = self.side.read_text()
        for name, content in (("damaged", good.replace('"write"', '"wrote"', 1)),
                              ("another version", good.replace('"revision": "', '"revision": "0', 1)),
                              ("no JSON", good[:100]), ("empty", ""), ("binary", "\0" * 5000)):
            with self.subTest(name):
                self.side.write_text(content)
                done, kernels, _ = self.run_app()
                self.assertEqual(done.stdout, alone.stdout)
                self.assertNotIn("analysis", kernels[0])
                self.assertEqual(self.facts(kernels), self.facts(before))
                lines = [l for l in done.stderr.splitlines() if str(self.side) in l]
                self.assertEqual(len(lines), 1, done.stderr)
                self.assertIn("ignored", lines[0])
        # Another program of the same name: its image has another hash.
        self.side.write_text(good)
        code = self.app.read_bytes()
        at = code.index(b"// ", code.index(b".version"))  # a comment in the PTX
        self.app.write_bytes(code[:at] + b"//-" + code[at + 3:])
        done, kernels, _ = self.run_app()
        self.assertNotIn("analysis", kernels[0])
        self.assertNotIn(str(self.side), done.stderr)

    def test_json(self):
        done = self.analyze("--no-store", "--json", self.app, EXAMPLE)
        self.assertFalse(self.side.exists())
        out = json.loads(done.stdout)
        self.assertEqual(out["schema"], "gpurecover.analyze/1")
        self.assertEqual([f["file"] for f in out["files"]], ["app", "vector_add"])
        image = out["files"][0]["images"][0]
        self.assertEqual(image["kind"], "ptx")
        kernel = image["kernels"][0]
        self.assertEqual(kernel["name"], "vector_add")
        self.assertNotIn("summary", kernel)
        self.assertTrue(all(a["range"] == "exact" for a in kernel["accesses"]))
        self.assertEqual(done.stdout,
                         self.analyze("--no-store", "--format", "json", self.app, EXAMPLE).stdout)
        # The same bytes each time, so that builds can be compared.
        self.analyze("-q", self.app)
        first = self.side.read_bytes()
        self.analyze("-q", self.app)
        self.assertEqual(self.side.read_bytes(), first)

    def test_stored_files_follow_their_schema(self):
        schema = json.loads((SOURCE / "docs/schema/analysis.schema.json").read_text())
        self.analyze("-q", self.app)

        def check(rule, value, where):
            if "$ref" in rule:
                rule = schema["definitions"][rule["$ref"].rsplit("/", 1)[1]]
            kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
            if "type" in rule:
                self.assertIsInstance(value, kinds[rule["type"]], where)
            if "const" in rule:
                self.assertEqual(value, rule["const"], where)
            if "enum" in rule:
                self.assertIn(value, rule["enum"], where)
            if isinstance(value, dict):
                self.assertLessEqual(set(rule.get("required", [])), set(value), where)
                self.assertLessEqual(set(value), set(rule["properties"]), where)
                for name, member in value.items():
                    check(rule["properties"][name], member, f"{where}.{name}")
            if isinstance(value, list):
                for k, member in enumerate(value):
                    check(rule["items"], member, f"{where}[{k}]")

        check(schema, json.loads(self.side.read_text()), "")

    def test_bad_input(self):
        def refused(*words, says):
            done = call(GPURECOVER, "analyze", *words)
            self.assertEqual(done.returncode, 125, done.stdout + done.stderr)
            for part in says:
                self.assertIn(part, done.stderr)
            return done

        script = self.folder / "run.sh"
        script.write_text("#!/bin/sh\nexec ./app\n")
        cut = self.folder / "cut.fatbin"
        # The head of a container that says that 4,096 bytes follow, and no more.
        cut.write_bytes(bytes.fromhex("50ed55ba01001000") + (4096).to_bytes(8, "little"))
        refused("/no/such/file", says=["/no/such/file", "No such file"])
        refused(self.folder, says=["is a folder"])
        refused(script, says=["run.sh"])
        refused("/bin/true", says=["no kernels", "library"])
        refused(cut, says=["cut.fatbin", "byte"])
        refused("-o", self.folder / "o", self.app, EXAMPLE.parent / "vector_add", self.app,
                "/bin/false", says=["no kernels"])
        refused("--no-store", "-o", "x", self.app, says=["exclude"])
        refused(says=["FILE"])
        # One bad file does not hide a good one.
        done = refused("--no-store", "/no/such/file", self.app, says=["No such file"])
        self.assertIn("vector_add", done.stdout)
        twin = self.folder / "twin"
        twin.mkdir()
        shutil.copy(self.app, twin / "app")
        refused("-o", self.folder / "o", self.app, twin / "app", says=["different folders"])

    def test_a_project_that_analyses_after_the_build(self):
        build = self.folder / "build"
        done = call(CMAKE, "-S", SOURCE / "tests/e2e/cmake", "-B", build,
                    f"-Dgpurecover_DIR={BUILD}/lib/cmake/gpurecover",
                    f"-DGPURECOVER_SOURCE={SOURCE}", f"-DCUDA_INCLUDE={os.environ['CUDA_INCLUDE']}",
                    f"-DVECTOR_ADD_PTX={BUILD}/examples/kernels/vector_add_ptx.cpp",
                    "-DCMAKE_BUILD_TYPE=Release")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = call(CMAKE, "--build", build)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("no kernels", done.stdout + done.stderr)  # of the target `empty`
        side = build / "app.gpurecover.json"
        self.assertTrue(side.exists())
        kernels = self.run_app(app=build / "app")[1]
        self.assertEqual(kernels[0]["analysis"], str(side))


if __name__ == "__main__":
    unittest.main()
