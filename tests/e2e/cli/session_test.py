# SPDX-License-Identifier: Apache-2.0
"""The session socket: agents, status, arming, and peers that misbehave."""
import concurrent.futures
import json
import os
import re
import select
import socket
import stat
import unittest

from harness import Case, FAKE_AGENT, TIMEOUT, main

# One process with one protected kernel.
WORK = ("connect", "attach", "kernel|1|saxpy|0|bounded", "launch|1|0|1|5")


class Session(Case):
    def test_configuration_reaches_the_agent(self):
        done, _ = self.agent("connect", "config", options=("--level", "replay", "-v",
                                                           "--name", "mine"))
        self.assertRegex(done.stdout.decode(), r"^session=mine level=1 verbosity=2 rules=[1-9]\d*\n$")

    def test_takeover_options_reach_the_agent(self):
        for options, expected in (((), "standby=1 no_steer=0"),
                                  (("--standby", "off"), "standby=0 no_steer=0"),
                                  (("--standby", "warm"), "standby=2 no_steer=0"),
                                  (("--no-steer",), "standby=1 no_steer=1")):
            done, _ = self.agent("connect", "takeover", options=options)
            self.assertEqual(done.stdout.decode(), expected + "\n")

    def test_standbys_are_started_and_end_with_their_process(self):
        # Two one after the other; the first one's socket closes when the second's is kept.
        done, _ = self.agent("connect", "standby", "standby", "kill|9",
                             options=("--device", "soft", "-q"))
        pids = re.findall(r"^started=(\d+) error= hello= same=1$", done.stdout.decode(), re.M)
        self.assertEqual(len(pids), 2, done.stdout + done.stderr)
        for pid in pids:
            with self.assertRaises(ProcessLookupError):
                os.kill(int(pid), 0)

    def test_a_standby_outlives_the_supervisor_but_not_the_app(self):
        process = self.start("run", "--device", "soft", "-q", "--", FAKE_AGENT, "connect",
                             "standby", "line")
        pid = int(re.match(rb"started=(\d+) error= hello= same=1", process.stdout.readline())[1])
        process.kill()
        process.wait(TIMEOUT)
        os.kill(pid, 0)
        fd = os.pidfd_open(pid)
        self.addCleanup(os.close, fd)
        self.assertEqual(select.select([fd], [], [], 0)[0], [])
        process.stdin.write(b"x\n")
        process.stdin.close()
        self.assertEqual(select.select([fd], [], [], 10)[0], [fd])

    def test_plan_reaches_the_agent(self):
        done, _ = self.agent("connect", "config", verb="inject",
                             options=("-k", "saxpy", "--error", "ecc", "--nth", "3"))
        self.assertRegex(done.stdout.decode(), r"plan=saxpy/ecc/214/3\n$")

    def test_folder_is_private_and_removed(self):
        process = self.start("run", "-q", "--name", "priv", "--", "/bin/sh", "-c",
                             "echo ready; read x")
        process.stdout.readline()
        folder = self.runtime / "gpurecover" / "priv"
        self.assertEqual(stat.S_IMODE(folder.stat().st_mode), 0o700)
        self.assertEqual(stat.S_IMODE((folder / "socket").stat().st_mode), 0o600)
        process.communicate(b"x\n", TIMEOUT)
        self.assertEqual(self.session_folders(), [])

    def test_sessions_that_start_at_once_keep_their_folders(self):
        # Each clears up what dead sessions left; none may take another's new folder for dead.
        def one(_):
            return self.run_app("true", verb="inject",
                                options=("-q", "-k", "x", "--error", "ecc", "--seed", "1"))

        with concurrent.futures.ThreadPoolExecutor(max_workers=16) as pool:
            for done in pool.map(one, range(200)):
                self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.session_folders(), [])

    def test_name_of_a_living_session(self):
        process = self.start("run", "-q", "--name", "one", "--", "/bin/sh", "-c",
                             "echo ready; read x")
        process.stdout.readline()
        mark = self.folder / "ran"
        done = self.run_app("/usr/bin/touch", str(mark), options=("--name", "one"))
        self.assertEqual(done.returncode, 125)
        self.assertIn(b"'one' is running", done.stderr)
        self.assertFalse(mark.exists())
        process.communicate(b"x\n", TIMEOUT)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(self.run_app("/bin/true", options=("--name", "one")).returncode, 0)

    def test_folder_of_another_kind_is_not_trusted(self):
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        (self.runtime / "gpurecover").symlink_to(elsewhere)
        done = self.run_app("/bin/sh", "-c", "exit 4")
        # The app is not to suffer.
        self.assertEqual(done.returncode, 4)
        self.assertIn(b"unprotected", done.stderr)
        self.assertEqual(list(elsewhere.iterdir()), [])

    def test_status(self):
        process = self.start("run", "-q", "--name", "busy", "--", FAKE_AGENT, *WORK, "say|ready",
                             "line", "launch|1|0|1|2")
        process.stdout.readline()
        text = self.gpurecover("status")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn(b"session busy", text.stdout)
        self.assertIn(b"5 launches of 1 kernel, 5 protected", text.stdout)
        summary = json.loads(self.gpurecover("status", "--session", "busy", "--format",
                                             "json").stdout)
        self.assertEqual(summary["totals"]["launches"], 5)
        self.assertEqual(summary["exit"], {"code": None, "signal": None, "origin": ""})
        process.communicate(b"x\n", TIMEOUT)

    def test_status_without_a_session(self):
        done = self.gpurecover("status")
        self.assertEqual(done.returncode, 125)
        self.assertIn(b"no session is running", done.stderr)
        process = self.start("run", "-q", "--name", "training", "--", "/bin/sh", "-c",
                             "echo ready; read x")
        process.stdout.readline()
        done = self.gpurecover("status", "--session", "trainning")
        self.assertEqual(done.returncode, 125)
        self.assertIn(b"did you mean 'training'", done.stderr)
        process.communicate(b"x\n", TIMEOUT)

    def test_arming_a_running_session(self):
        process = self.start("run", "--name", "arm", "--", FAKE_AGENT, *WORK, "say|ready", "plan",
                             "matched|0|1", "fired|0|1", "fault|recovered-replay|saxpy|1")
        process.stdout.readline()
        done = self.gpurecover("inject", "-k", "saxpy", "--error", "ecc", "--session", "arm")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"armed: --kernel saxpy --error ecc", done.stderr)
        out, err = process.communicate(b"", TIMEOUT)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(out, b"armed=saxpy generation=1\n")
        self.assertIn(b"recovered-replay", err)

    def test_armed_but_never_fired(self):
        report = self.folder / "r.json"
        process = self.start("run", "-q", "--report", str(report), "--", FAKE_AGENT, *WORK,
                             "say|ready", "plan")
        process.stdout.readline()
        done = self.gpurecover("inject", "-k", "other", "--error", "ecc", "--every", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        process.communicate(b"", TIMEOUT)
        fault = json.loads(report.read_text())["faults"][0]
        self.assertEqual(fault["outcome"], "not-fired")
        self.assertIn("--kernel other --error ecc", fault["repeat"])
        self.assertIn("--every 3", fault["repeat"])

    def test_a_later_process_gets_what_was_armed(self):
        process = self.start("run", "-q", "--", "/bin/sh", "-c",
                             f"echo ready; read x; exec {FAKE_AGENT} connect config")
        process.stdout.readline()
        self.gpurecover("inject", "-k", "late", "--error", "ecc")
        out, _ = process.communicate(b"x\n", TIMEOUT)
        self.assertIn(b"plan=late/ecc", out)

    def test_a_session_takes_so_many_faults(self):
        process = self.start("run", "-q", "--", "/bin/sh", "-c", "echo ready; read x")
        process.stdout.readline()
        results = [self.gpurecover("inject", "-k", "x", "--error", "ecc", "--seed", "1")
                   for _ in range(65)]
        self.assertEqual([done.returncode for done in results], [0] * 64 + [125])
        self.assertIn(b"64", results[-1].stderr)
        process.communicate(b"x\n", TIMEOUT)

    def test_another_version_is_refused_by_name(self):
        done, summary = self.agent("version|999", "connect")
        self.assertIn(b"refused: protocol version 999", done.stdout)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(summary["processes"], [])

    def test_malformed_messages_end_one_connection_only(self):
        for bad in ("garbage", "huge", "unknown", "badkernel", "fault|no-such-outcome|k|0",
                    "fault|not-fired|k|0", "notice|77|x", "kernel|1|v|9",
                    "connect"):
            with self.subTest(bad):
                # A good process, then one that misbehaves, then a good one again.
                done, summary = self.agent(*WORK, "fork", "connect", "attach", bad, "close", "fork",
                                           *WORK, "exit|8")
                self.assertEqual(done.returncode, 8, done.stderr)
                self.assertEqual(summary["totals"]["launches"], 10)

    def test_launches_after_a_broken_connection_still_count(self):
        done, summary = self.agent(*WORK, "garbage", "launch|1|0|1|7")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(summary["totals"]["launches"], 12)

    def test_nothing_is_lost_when_the_app_ends_at_once(self):
        for ending in ("exit|3", "kill|9"):
            with self.subTest(ending):
                _, summary = self.agent(*WORK, *[f"fault|recovered-replay|k{i}|0"
                                                 for i in range(200)], ending, options=("-q",))
                self.assertEqual(summary["totals"]["faults"], 200)
                self.assertEqual(summary["totals"]["launches"], 5)

    def test_before_hello_nothing_is_believed(self):
        _, summary = self.agent("raw", "fault|recovered-replay|k|0", "close", *WORK)
        self.assertEqual(summary["totals"]["faults"], 0)
        self.assertEqual(summary["totals"]["launches"], 5)

    def test_many_connections(self):
        process = self.start("run", "-q", "--name", "many", "--", "/bin/sh", "-c",
                             "echo ready; read x; exit 2")
        process.stdout.readline()
        path = str(self.runtime / "gpurecover" / "many" / "socket")
        peers = []
        for _ in range(1100):
            peer = socket.socket(socket.AF_UNIX)
            peer.setblocking(False)
            try:
                peer.connect(path)
            except BlockingIOError:
                peer.close()
                break
            peers.append(peer)
        self.assertGreater(len(peers), 500)
        for peer in peers:
            peer.close()
        self.assertEqual(self.gpurecover("status").returncode, 0)
        process.communicate(b"x\n", TIMEOUT)
        self.assertEqual(process.returncode, 2)


if __name__ == "__main__":
    main()
