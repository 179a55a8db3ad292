#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of app, standby or supervisor at random moments of a run with a takeover:

  app         the supervisor reports the signal; no standby is left
  standby     the app ends with the right result, or with its error; never with another result
  supervisor  the app goes on; with the right result if the takeover could still be had, or its error

and whatever was killed: nothing hangs, and no process of the session is left over.
"""
import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

MARK = "GPURECOVER_KILL_TEST"


def session_processes(mark):
    """{pid: executable's name} of every process that inherited the mark."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/environ" % entry, "rb") as f:
                if mark not in f.read():
                    continue
            with open("/proc/%s/stat" % entry) as f:
                if f.read().rpartition(")")[2].split()[0] == "Z":
                    continue
            found[int(entry)] = os.path.basename(os.readlink("/proc/%s/exe" % entry))
        except OSError:
            pass  # it is gone
    return found


class Run:
    def __init__(self, args, number, standby):
        self.mark = ("%s=%d-%d" % (MARK, os.getpid(), number)).encode()
        name, value = self.mark.decode().split("=")
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        env = dict(os.environ, **{name: value})
        command = [args.gpurecover, "inject", "--device", "soft", "--standby", standby, "--kernel",
                   "*", "--nth", str(args.nth), "--error", "ecc", "--how", "fault", "--",
                   args.app, "--steps", str(args.steps)]
        self.start = time.monotonic()
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=self.out,
                                        stderr=self.err)
        self.app_name = os.path.basename(args.app)

    def victim(self, which):
        for pid, name in session_processes(self.mark).items():
            if (which == "supervisor" and pid == self.process.pid) or (
                    which == "standby" and name == "gpurecover-standby") or (
                    which == "app" and name == self.app_name):
                return pid
        return None

    def read(self, file):
        file.seek(0)
        return file.read().decode(errors="replace")

    def end_all(self):
        for pid in session_processes(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass


def one(args, number, rng, reference, duration):
    """Returns (who was killed or None, problem or None)."""
    which = rng.choice(("app", "standby", "supervisor"))
    standby = rng.choice(("cold", "warm"))
    at = rng.uniform(0, duration)
    run = Run(args, number, standby)
    killed, ran = None, True
    try:
        # The moment itself is what is being tried out.
        while time.monotonic() - run.start < at and run.process.poll() is None:
            time.sleep(0.0005)
        # A standby may not be there yet: then the next moment at which it is.
        while killed is None and run.process.poll() is None:
            pid = run.victim(which)
            if pid is not None:
                try:
                    ran = run.victim("app") is not None
                    os.kill(pid, signal.SIGKILL)
                    killed = which
                except OSError:
                    pass
            elif which != "standby":
                break
        try:
            status = run.process.wait(timeout=args.limit)
        except subprocess.TimeoutExpired:
            return killed, "hangs after kill of %s: %s" % (which, run.read(run.err)[-500:])
        # What the supervisor leaves behind ends by itself.
        deadline = time.monotonic() + args.limit
        while (left := session_processes(run.mark)) and time.monotonic() < deadline:
            ran = ran or run.app_name in left.values()
            time.sleep(0.002)
        if left:
            return killed, "left over after kill of %s: %s" % (which, left)
        out, err = run.read(run.out), run.read(run.err)
        sums = re.findall(r"^checksum=(\S+)$", out, re.M)
        if sums and sums != [reference]:
            return killed, "WRONG RESULT %s after kill of %s (%s)\n%s" % (sums, which, standby, err)
        # A supervisor that was killed before it started the app has started nothing.
        if not sums and ran and killed in (None, "supervisor") and "CUDA error 214" not in err:
            return killed, "neither result nor error after kill of %s: exit %d\n%s" % (
                killed, status, err)
        if killed is None and (status != 0 or not sums):
            return killed, "undisturbed: exit %d\n%s" % (status, err)
        if killed == "app" and status != -signal.SIGKILL and not sums:
            return killed, "the app was killed, and the supervisor's status is %d" % status
        if killed == "standby" and not (status == 0 and sums) and "CUDA error 214" not in err:
            return killed, "exit %d, neither result nor the app's error\n%s" % (status, err)
        return killed, None
    finally:
        run.end_all()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpurecover")
    parser.add_argument("app", help="heat2d or another example with --steps")
    parser.add_argument("--times", type=int, default=12, help="runs in which somebody was killed")
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--nth", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--limit", type=float, default=60)
    args = parser.parse_args()
    print("seed %d" % args.seed)
    rng = random.Random(args.seed)

    plain = subprocess.run([args.gpurecover, "run", "-q", "--device", "soft", "--", args.app,
                            "--steps", str(args.steps)], capture_output=True, text=True,
                           timeout=args.limit)
    reference = re.search(r"^checksum=(\S+)$", plain.stdout, re.M)
    if plain.returncode != 0 or not reference:
        print("the undisturbed run fails: %s" % plain.stderr)
        return 1
    reference = reference.group(1)
    start = time.monotonic()
    run = Run(args, 0, "cold")
    status = run.process.wait(timeout=args.limit)
    duration = time.monotonic() - start
    if status != 0 or "recovered-takeover" not in run.read(run.err):
        print("the run that is to be disturbed is not taken over: %s" % run.read(run.err))
        return 1

    killed = {}
    number = 0
    while sum(killed.values()) < args.times and number < 4 * args.times:
        number += 1
        who, problem = one(args, number, rng, reference, duration)
        if problem:
            print("run %d: %s" % (number, problem))
            return 1
        if who:
            killed[who] = killed.get(who, 0) + 1
    print("%d runs, killed: %s; no hang, nothing left over, no wrong result" % (number, killed))
    return 0 if sum(killed.values()) >= args.times else 1


if __name__ == "__main__":
    sys.exit(main())
