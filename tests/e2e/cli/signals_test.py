# SPDX-License-Identifier: Apache-2.0
"""Signals and job control. Nothing here sleeps: every step waits for a line or a state."""
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import unittest

from harness import Case, GPURECOVER, TIMEOUT, main

# Tells each signal that it gets; ends when told to on stdin, after those that were waiting then
# (of several waiting signals the kernel gives the lowest number first). A handler would lose one
# that comes twice; sigtimedwait of Python 3.11 returns rubbish after a stop.
LISTENER = r"""
import os, signal, sys, threading
numbers = {*%r, signal.SIGRTMAX}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
def read():
    sys.stdin.read(1)
    os.kill(os.getpid(), signal.SIGRTMAX)
threading.Thread(target=read, daemon=True).start()
print("ready", os.getpid(), flush=True)
while True:
    number = signal.sigwaitinfo(numbers).si_signo
    if number == signal.SIGRTMAX:
        os._exit(4)
    print("got", number, flush=True)
"""
# A real-time signal that is sent twice is got twice: ordinary ones may merge.
QUEUED = signal.SIGRTMIN + 1
LISTENED = [int(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT,
                             signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGALRM,
                             signal.SIGTSTP, signal.SIGCONT, QUEUED)]


def state(pid):
    """A process's state letter, '' if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


class Signals(Case):
    def wait_for(self, what, condition):
        end = time.monotonic() + TIMEOUT
        while not condition():
            self.assertLess(time.monotonic(), end, f"waited in vain for {what}")
            os.sched_yield()

    def listener(self, **options):
        process = self.start("run", "-q", "--", sys.executable, "-c", LISTENER % (LISTENED,), **options)
        words = process.stdout.readline().split()
        self.assertEqual(words[0], b"ready")
        return process, int(words[1])

    def end(self, process):
        """Ends the listener and returns the signals it had left to tell."""
        # Signals are handled before questions: once it answers, nothing is on its way any more.
        self.assertEqual(self.gpurecover("status").returncode, 0)
        out, _ = process.communicate(b"x", TIMEOUT)
        self.assertEqual(process.returncode, 4)
        return [int(line.split()[1]) for line in out.splitlines()]

    def next(self, process):
        return int(process.stdout.readline().split()[1])

    def test_signals_to_us_are_passed_on_once(self):
        for number in LISTENED:
            if number in (signal.SIGTSTP, signal.SIGCONT):
                continue
            with self.subTest(number):
                process, _ = self.listener()
                process.send_signal(number)
                self.assertEqual(self.next(process), number)
                self.assertEqual(self.end(process), [])

    def test_signals_to_the_group_reach_the_app_once(self):
        for number in (signal.SIGTERM, signal.SIGINT, QUEUED):
            with self.subTest(number):
                process, _ = self.listener(start_new_session=True)
                os.killpg(process.pid, number)
                self.assertEqual(self.next(process), number)
                self.assertEqual(self.end(process), [])

    def test_each_of_several_signals_counts(self):
        process, _ = self.listener()
        for _ in range(5):
            process.send_signal(QUEUED)
        self.assertEqual([self.next(process) for _ in range(5)], [QUEUED] * 5)
        self.assertEqual(self.end(process), [])

    def test_a_signal_that_ends_the_app_ends_us(self):
        process = self.start("run", "-q", "--", "/bin/sh", "-c", "echo ready; read x; exit 3")
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(TIMEOUT), -signal.SIGTERM)
        self.assertEqual(self.session_folders(), [])

    def test_a_signal_to_the_app_alone_is_not_ours(self):
        process, app = self.listener()
        os.kill(app, signal.SIGTERM)
        self.assertEqual(self.next(process), signal.SIGTERM)
        self.assertEqual(self.end(process), [])

    def test_the_apps_signals_to_its_parent_do_not_come_back(self):
        code = ("import os, signal; signal.signal(signal.SIGUSR1, lambda *_: os._exit(9));"
                "[os.kill(os.getppid(), signal.SIGUSR1) for _ in range(5)];"
                "input(); print('fine')")
        done = self.run_app(sys.executable, "-c", code, options=("-q",), input=b"\n")
        self.assertEqual((done.returncode, done.stdout), (0, b"fine\n"))

    def test_app_goes_on_when_we_are_killed(self):
        process = self.start("run", "-q", "--", "/bin/sh", "-c",
                             'echo $$; read x; echo "still here: $x"')
        app = int(process.stdout.readline())
        process.kill()
        process.wait(TIMEOUT)
        self.assertNotEqual(state(app), "")
        process.stdin.write(b"word\n")
        process.stdin.flush()
        self.assertEqual(process.stdout.readline(), b"still here: word\n")
        self.assertEqual(process.stdout.read(), b"")
        # What is left of the session is cleared by the next one.
        self.assertEqual(len(self.session_folders()), 1)
        self.assertEqual(self.run_app("/bin/true").returncode, 0)
        self.assertEqual(self.session_folders(), [])

    def test_stopping_the_app_alone_does_not_stop_us(self):
        process, app = self.listener()
        os.kill(app, signal.SIGSTOP)
        self.wait_for("the app's stop", lambda: state(app) == "T")
        # We still answer.
        status = self.gpurecover("status")
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertNotEqual(state(process.pid), "T")
        os.kill(app, signal.SIGCONT)
        self.assertEqual(self.next(process), signal.SIGCONT)
        self.assertEqual(self.end(process), [])

    def test_stop_and_continue_by_hand(self):
        # SIGTSTP to us alone stops the app, then us; SIGCONT to us alone continues both.
        process = self.start("run", "-q", "--", "/bin/sh", "-c", "echo $$; read x; exit 5",
                             start_new_session=False)
        app = int(process.stdout.readline())
        process.send_signal(signal.SIGTSTP)
        # An orphaned process group is not stopped by SIGTSTP: then nothing is to be seen here.
        self.wait_for("a stop or none", lambda: state(app) in ("T", "S"))
        process.send_signal(signal.SIGCONT)
        process.stdin.write(b"x\n")
        process.stdin.flush()
        self.assertEqual(process.wait(TIMEOUT), 5)


class Terminal(Case):
    """Under a terminal with a shell's job control."""

    def setUp(self):
        super().setUp()
        self.shell, self.terminal = pty.fork()
        if self.shell == 0:
            os.environ.clear()
            os.environ.update(self.env(PS1="", PATH="/usr/bin:/bin"))
            os.execv("/bin/bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"])
        self.seen = b""
        self.addCleanup(self.hang_up)
        self.type("stty -echo; set -m; echo up-$((1+1))\n")
        self.expect(rb"up-2")

    def hang_up(self):
        try:
            os.kill(self.shell, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.close(self.terminal)
        os.waitpid(self.shell, 0)

    def type(self, text):
        os.write(self.terminal, text.encode())

    def expect(self, pattern):
        end = time.monotonic() + TIMEOUT
        while True:
            found = re.search(pattern, self.seen)
            if found:
                self.seen = self.seen[found.end():]
                return found
            left = end - time.monotonic()
            self.assertGreater(left, 0, f"{pattern} not in {self.seen}")
            if select.select([self.terminal], [], [], left)[0]:
                try:
                    self.seen += os.read(self.terminal, 65536)
                except OSError:
                    self.fail(f"the terminal is gone, {pattern} not in {self.seen}")

    def wait_for(self, what, condition):
        end = time.monotonic() + TIMEOUT
        while not condition():
            self.assertLess(time.monotonic(), end, f"waited in vain for {what}")
            os.sched_yield()

    def test_interrupt_key(self):
        self.type(f"{GPURECOVER} run -q -- sh -c 'trap \"echo int; exit 3\" INT; echo app-$$;"
                  " while :; do read x; done'; echo status-$?\n")
        self.expect(rb"app-(\d+)")
        self.type("\x03")
        self.expect(rb"status-3")
        self.assertEqual(self.seen.count(b"int"), 0)

    def test_suspend_key_and_fg(self):
        self.type(f"{GPURECOVER} run -q -- sh -c 'echo app-$$; read x; echo got-$x; exit 6'\n")
        app = int(self.expect(rb"app-(\d+)").group(1))
        self.type("\x1a")
        self.expect(rb"Stopped")
        self.wait_for("the app's stop", lambda: state(app) == "T")
        self.type("fg\n")
        self.wait_for("the app to go on", lambda: state(app) == "S")
        self.type("word\n")
        self.expect(rb"got-word")
        self.type("echo status-$?\n")
        self.expect(rb"status-6")

    def test_app_reads_the_terminal_in_the_background(self):
        self.type(f"{GPURECOVER} run -q -- sh -c 'echo app-$$; read x; echo got-$x' &\n")
        app = int(self.expect(rb"app-(\d+)").group(1))
        self.wait_for("the app's stop", lambda: state(app) == "T")
        # A shell continues only what it knows to have stopped.
        while True:
            self.type("jobs; echo asked-$((1+1))\n")
            if b"Stopped" in self.expect(rb"(?s).*asked-2").group(0):
                break
        self.type("fg\n")
        self.wait_for("the app to go on", lambda: state(app) == "S")
        self.type("later\n")
        self.expect(rb"got-later")

    def test_app_that_stops_itself_with_the_key(self):
        # As editors do: take SIGTSTP, tidy up, SIGSTOP.
        self.type(f"{GPURECOVER} run -q -- {sys.executable} -c \"import os, signal;"
                  "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP]);"
                  "print('app-%d' % os.getpid(), flush=True); signal.sigwait([signal.SIGTSTP]);"
                  "os.kill(os.getpid(), signal.SIGSTOP); print('got-' + input())\"\n")
        app = int(self.expect(rb"app-(\d+)").group(1))
        self.type("\x1a")
        self.expect(rb"Stopped")
        self.type("fg\n")
        self.wait_for("the app to go on", lambda: state(app) == "S")
        self.type("word\n")
        self.expect(rb"got-word")

    def test_size_changes_reach_the_app_once(self):
        self.type(f"{GPURECOVER} run -q -- sh -c 'trap \"echo win\" WINCH; echo app-$$; read x;"
                  " while [ -z \"$x\" ]; do read x; done; echo end'\n")
        self.expect(rb"app-\d+")
        import fcntl
        import struct
        import termios
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 99, 0, 0))
        self.type("\n")
        self.type("x\n")
        self.expect(rb"end")


if __name__ == "__main__":
    main()
