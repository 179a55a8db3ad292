# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share: running gpurecover in a world of its own."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

GPURECOVER = os.environ["GPURECOVER"]
FAKE_AGENT = os.environ["FAKE_AGENT"]
SOURCE = pathlib.Path(os.environ["GPURECOVER_SOURCE"])
TIMEOUT = 60

# Ours, and what would make the outcome depend on where the tests run.
CLEARED = ("CUDA_INJECTION64_PATH", "GPURECOVER_SESSION", "GPURECOVER_CUPTI")


class Case(unittest.TestCase):
    def setUp(self):
        # Socket paths are short: not below a long build path.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gr-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.runtime = self.folder / "run"
        self.runtime.mkdir(mode=0o700)

    def env(self, **more):
        env = {k: v for k, v in os.environ.items() if k not in CLEARED}
        env["XDG_RUNTIME_DIR"] = str(self.runtime)
        env.update(more)
        return env

    def gpurecover(self, *words, env=None, **options):
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run([GPURECOVER, *words], env=env or self.env(), timeout=TIMEOUT,
                              **options)

    def run_app(self, *app, options=(), verb="run", **more):
        return self.gpurecover(verb, *options, "--", *app, **more)

    def start(self, *words, env=None, **options):
        options.setdefault("stdin", subprocess.PIPE)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        process = subprocess.Popen([GPURECOVER, *words], env=env or self.env(), **options)

        def stop():
            if process.poll() is None:
                process.kill()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    try:
                        stream.close()
                    except OSError:
                        pass
            process.wait(TIMEOUT)

        self.addCleanup(stop)
        return process

    def agent(self, *steps, options=(), verb="run", **more):
        """Runs the fake agent under gpurecover and returns the process and its summary."""
        report = self.folder / "run.json"
        done = self.run_app(FAKE_AGENT, *steps, verb=verb,
                            options=("--report", str(report), *options), **more)
        return done, json.loads(report.read_text())

    def session_folders(self):
        base = self.runtime / "gpurecover"
        if not base.exists():
            return []
        return sorted(p.name for p in base.iterdir() if not p.name.startswith("."))

    def own_lines(self, stderr):
        """gpurecover's lines, less the one about a machine without a device."""
        lines = [line for line in stderr.decode().splitlines()
                 if line.startswith("gpurecover: ")]
        return [line for line in lines if "no CUDA device here" not in line]


def main():
    unittest.main(verbosity=2)
