# SPDX-License-Identifier: Apache-2.0
"""The app is as if alone: arguments, streams, environment, exit status."""
import json
import os
import signal
import subprocess
import sys
import unittest

from harness import Case, GPURECOVER, TIMEOUT, main

SHOW_ARGV = "import sys, json; print(json.dumps(sys.argv[1:]))"


class Passthrough(Case):
    def test_exit_status_is_the_apps(self):
        for status in (0, 1, 7, 124, 125, 126, 127, 255):
            with self.subTest(status):
                self.assertEqual(self.run_app("/bin/sh", "-c", f"exit {status}").returncode, status)

    def test_signal_of_the_app_is_raised_again(self):
        for name in ("SIGSEGV", "SIGABRT", "SIGKILL", "SIGTERM", "SIGPIPE", "SIGUSR1", "SIGINT"):
            number = getattr(signal, name)
            with self.subTest(name):
                done = self.run_app(sys.executable, "-c",
                                    "import os, signal;"
                                    f"signal.signal({int(number)}, signal.SIG_DFL)"
                                    f" if {int(number)} != 9 else None;"
                                    f"os.kill(os.getpid(), {int(number)})")
                self.assertEqual(done.returncode, -number)

    def test_no_second_core_file(self):
        done = self.run_app("/bin/sh", "-c", "ulimit -c unlimited; kill -SEGV $$",
                            cwd=self.folder)
        self.assertEqual(done.returncode, -signal.SIGSEGV)
        # Where the kernel writes cores into the working folder, the app's may be there, ours not.
        self.assertLessEqual(len(list(self.folder.glob("core*"))), 1)

    def test_not_found_and_not_executable(self):
        plain = self.folder / "plain"
        plain.write_text("no program")
        self.assertEqual(self.run_app("/nonexistent").returncode, 127)
        self.assertEqual(self.run_app("surely-no-such-program").returncode, 127)
        self.assertEqual(self.run_app(str(plain)).returncode, 126)
        self.assertEqual(self.run_app(str(self.folder)).returncode, 126)
        # A program that itself says 127 is told apart in the report.
        report = self.folder / "r.json"
        self.run_app("/bin/sh", "-c", "exit 127", options=("--report", str(report)))
        self.assertEqual(json.loads(report.read_text())["exit"]["origin"], "app")
        self.run_app("/nonexistent", options=("--report", str(report)))
        self.assertEqual(json.loads(report.read_text())["exit"],
                         {"code": 127, "signal": None, "origin": "gpurecover"})

    def test_arguments_are_untouched(self):
        words = ["[x,y]", "", " ", "a b", "--help", "--", "-k", "--kernel=x", "'", '"', "\\", "*",
                 "$HOME", "-q", "--report", "ä\n", "--version", "{1}"]
        done = self.run_app(sys.executable, "-c", SHOW_ARGV, *words)
        self.assertEqual(json.loads(done.stdout), words)

    def test_arguments_that_are_no_text(self):
        done = self.run_app("/usr/bin/printf", "%s", b"\xff\xfe\x80")
        self.assertEqual(done.stdout, b"\xff\xfe\x80")

    def test_streams_carry_any_bytes(self):
        data = bytes(range(256)) * 4096
        done = self.run_app("/bin/sh", "-c", "tee /dev/stderr", options=("-q",), input=data)
        self.assertEqual(done.stdout, data)
        self.assertTrue(done.stderr.endswith(data))

    def test_closed_streams_stay_closed(self):
        def close():
            os.close(0)
            os.close(1)

        done = subprocess.run(
            [GPURECOVER, "run", "--", "/bin/sh", "-c",
             "for n in 0 1; do [ -e /proc/$$/fd/$n ] && exit 3; done; exit 0"],
            env=self.env(), stderr=subprocess.PIPE, timeout=TIMEOUT, preexec_fn=close)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_app_inherits_no_descriptor_of_ours(self):
        done = self.run_app(sys.executable, "-c",
                            "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))",
                            options=("--events", str(self.folder / "e.jsonl")))
        # 3 is the listing itself.
        self.assertEqual(done.stdout.strip(), b"[0, 1, 2, 3]")

    def test_app_finds_the_signal_state_it_would_have_had(self):
        show = ("import re; s = open('/proc/self/status').read();"
                "print(re.findall(r'Sig(?:Blk|Ign):\\s*(\\w+)', s))")

        def ignore():
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

        # sh, since Python changes SIGPIPE and SIGXFSZ for itself.
        alone = subprocess.run([sys.executable, "-c", show], stdout=subprocess.PIPE,
                               preexec_fn=ignore, check=True)
        under = subprocess.run([GPURECOVER, "run", "--", sys.executable, "-c", show],
                               env=self.env(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               preexec_fn=ignore, timeout=TIMEOUT, check=True)
        self.assertEqual(under.stdout, alone.stdout)

    def test_environment(self):
        show = "import os, json; print(json.dumps(dict(os.environ)))"
        env = self.env(KEPT="yes", EMPTY="")
        seen = json.loads(self.run_app(sys.executable, "-c", show, env=env).stdout)
        self.assertEqual(seen["KEPT"], "yes")
        self.assertEqual(seen["EMPTY"], "")
        self.assertTrue(seen["CUDA_INJECTION64_PATH"].endswith("/libgpurecover.so"))
        self.assertTrue(os.path.exists(seen["CUDA_INJECTION64_PATH"]))
        self.assertTrue(seen["GPURECOVER_SESSION"].startswith(str(self.runtime)))
        self.assertIn("GPURECOVER_CUPTI", seen)

    def test_foreign_injection_is_refused_and_nothing_run(self):
        mark = self.folder / "ran"
        done = self.run_app("/usr/bin/touch", str(mark),
                            env=self.env(CUDA_INJECTION64_PATH="/opt/profiler/inject.so"))
        self.assertEqual(done.returncode, 125)
        self.assertIn(b"/opt/profiler/inject.so", done.stderr)
        self.assertFalse(mark.exists())

    def test_nested_runs_work(self):
        done = self.run_app(GPURECOVER, "run", "-q", "--", "/bin/sh", "-c", "exit 9")
        self.assertEqual(done.returncode, 9)

    def test_descendants_may_outlive_the_app(self):
        # A daemon that holds none of the streams delays nothing.
        done = self.run_app("/bin/sh", "-c", "sleep 30 </dev/null >/dev/null 2>&1 & exit 5")
        self.assertEqual(done.returncode, 5)

    def test_stderr_gone_is_no_harm(self):
        read, write = os.pipe()
        os.close(read)
        done = self.run_app("/bin/sh", "-c", "exit 6", stderr=write)
        os.close(write)
        self.assertEqual(done.returncode, 6)

    def test_quiet_is_quiet(self):
        done = self.run_app("/bin/echo", "hello", options=("-q",))
        self.assertEqual(done.stdout, b"hello\n")
        self.assertEqual(self.own_lines(done.stderr), [])

    def test_every_line_of_ours_has_the_prefix(self):
        done = self.run_app("/bin/true", options=("-v",))
        for line in done.stderr.decode().splitlines():
            self.assertTrue(line.startswith("gpurecover: "), line)
        self.assertNotEqual(self.own_lines(done.stderr), [])


if __name__ == "__main__":
    main()
