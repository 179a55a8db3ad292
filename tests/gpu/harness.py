# SPDX-License-Identifier: Apache-2.0
"""What the GPU checks share: bounded commands, the run summary, result files."""
import argparse
import concurrent.futures
import datetime
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

# name -> verdict that its kernels must get
EXAMPLES = {
    "vector_add": "idempotent", "saxpy_inplace": "clobbers", "histogram_atomic": "clobbers",
    "heat2d": "idempotent", "gemm_tiled": "idempotent", "pointer_table": "unknown",
    "two_streams": "idempotent", "many_small": "idempotent", "alloc_churn": "idempotent",
}
CODES = {"ecc": 214, "nvlink": 220, "contained": 226, "illegal-address": 700, "timeout": 702,
         "assert": 710, "misaligned": 716, "launch-failure": 719, "oom": 2}
VERDICTS = ("idempotent", "clobbers", "unknown")
OUTCOMES = ("recovered", "returned", "refused", "declined", "not_fired", "silent")


class Outcome:
    """What one process did."""

    def __init__(self, command, status, out, err, seconds):
        self.command, self.status, self.out, self.err = command, status, out, err
        self.seconds = seconds
        sums = re.findall(r"^checksum=(\S+)$", out, re.M)
        self.checksum = sums[0] if len(sums) == 1 else None
        error = re.search(r"^CUDA error (\d+) \(", err, re.M)
        self.cuda_error = int(error.group(1)) if error else None

    def short(self):
        text = "exit %d" % self.status
        if self.status in (124, 137):
            text += " (time limit)"
        text += ", " + (self.checksum or "no checksum")
        if self.cuda_error is not None:
            text += ", CUDA error %d" % self.cuda_error
        return text


def environment(extra=None):
    """Ours, without what another injection library or session may have left there."""
    drop = ("CUDA_INJECTION64_PATH", "GPURECOVER_SESSION")
    return {k: v for k, v in os.environ.items() if k not in drop} | (extra or {})


def end_session(leader):
    """Kills what is left of the session that `leader` began: an app in a process group of its own
    outlives the `timeout` that ended its parent."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry) as f:
                session = int(f.read().rpartition(")")[2].split()[3])
            if session == leader:
                os.kill(int(entry), signal.SIGKILL)
        except (OSError, ValueError, IndexError):
            pass  # it ended by itself


def execute(command, limit, extra=None):
    """Runs `command` to its end, at most `limit` seconds; `timeout` also ends what it started."""
    bounded = ["timeout", "-k", "3", "%g" % limit] + command
    start = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # Files, not pipes: a stray grandchild that holds a pipe open must not keep us waiting.
        process = subprocess.Popen(bounded, env=environment(extra), stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=err, start_new_session=True)
        try:
            status = process.wait(timeout=limit + 10)
        except subprocess.TimeoutExpired:
            status = 137
        if status in (124, 137):
            end_session(process.pid)
            process.wait()
        texts = []
        for f in (out, err):
            f.seek(0)
            texts.append(f.read(1 << 20).decode(errors="replace"))
    if status < 0:
        status = 128 - status
    return Outcome(command, status, texts[0], texts[1], time.monotonic() - start)


def load_report(path):
    try:
        with open(path) as f:
            report = json.load(f)
    except (OSError, ValueError) as problem:
        return None, "no report: %s" % problem
    if report.get("schema") != "gpurecover.run/1":
        return None, "report: schema is %r" % report.get("schema")
    return report, None


def report_problems(report):
    """The sums that every run summary must obey."""
    totals = report.get("totals", {})
    problems = []
    names = ("launches", "kernels", "protected", "unprotected", "faults") + VERDICTS + OUTCOMES
    for name in names:
        if not isinstance(totals.get(name), int):
            problems.append("totals.%s is %r" % (name, totals.get(name)))
    if problems:
        return problems
    for what, parts in (("launches", VERDICTS), ("launches", ("protected", "unprotected")),
                        ("faults", OUTCOMES)):
        if totals[what] != sum(totals[p] for p in parts):
            problems.append("totals.%s %d is not the sum of %s" % (
                what, totals[what], ", ".join("%s %d" % (p, totals[p]) for p in parts)))
    kernels = report.get("kernels", [])
    if sum(k["launches"] for k in kernels) != totals["launches"]:
        problems.append("kernels' launches do not add up to %d" % totals["launches"])
    if len(report.get("faults", [])) != totals["faults"]:
        problems.append("%d faults listed, totals.faults %d" % (
            len(report.get("faults", [])), totals["faults"]))
    for kernel in kernels:
        if kernel.get("verdict") not in VERDICTS:
            problems.append("kernel %s: verdict %r" % (kernel.get("name"), kernel.get("verdict")))
        elif kernel["verdict"] == "unknown" and not kernel.get("reason"):
            problems.append("kernel %s: unknown without a reason" % kernel.get("name"))
    return problems


class Row:
    """A line of a result table: what was run, what is wanted, what was seen, PASS or FAIL."""

    def __init__(self, name, command, wanted, seen, problems):
        self.name, self.wanted, self.seen, self.problems = name, wanted, seen, problems
        self.command = " ".join(shlex.quote(c) for c in command)

    @property
    def passed(self):
        return not self.problems


class Check:
    """One section: its rows, gathered by several threads, and the result file.

    The file is written whatever happens, also when the time is over (SIGTERM); what was planned and
    not run is counted in it, and then the section has not passed.
    """

    def __init__(self, args, name, title):
        self.args, self.title = args, title
        self.path = os.path.join(args.out, name)
        self.rows, self.planned, self.lock = [], 0, threading.Lock()
        self.notes = []
        self.scratch = tempfile.TemporaryDirectory(prefix="gpurecover-gpu-")
        self.start = time.monotonic()
        self.count = 0

    def report_path(self):
        with self.lock:
            self.count += 1
            return os.path.join(self.scratch.name, "report-%d.json" % self.count)

    def remaining(self):
        return self.args.limit - (time.monotonic() - self.start)

    def add(self, row):
        with self.lock:
            self.rows.append(row)

    def run_all(self, jobs):
        """Calls each of `jobs` (functions that return a Row), args.jobs at a time, while time is
        left; what a job raises is its row's failure."""
        self.planned += len(jobs)

        def guarded(job):
            if self.remaining() <= 0:
                return
            try:
                self.add(job())
            except Exception as problem:  # a broken check must not look like a passed one
                self.add(Row(getattr(job, "label", "check"), [], "", "", ["%s: %s" % (
                    type(problem).__name__, problem)]))

        with concurrent.futures.ThreadPoolExecutor(max_workers=self.args.jobs) as pool:
            list(pool.map(guarded, jobs))

    def finish(self):
        """Writes the result file and prints a summary; True if all was run and has passed."""
        failed = [r for r in self.rows if not r.passed]
        missing = self.planned - len(self.rows)
        good = not failed and missing == 0 and bool(self.rows)
        lines = [self.title, ""] + header(self.args)
        lines += self.notes
        lines += ["", "%s: %d of %d rows pass%s" % (
            "PASS" if good else "FAIL", len(self.rows) - len(failed), self.planned,
            ", %d not run (time limit)" % missing if missing else ""), ""]
        width = max([len(r.name) for r in self.rows] + [4])
        wide = max([len(r.wanted) for r in self.rows] + [6])
        lines.append("%-7s %-*s  %-*s  %s" % ("verdict", width, "what", wide, "wanted", "seen"))
        for row in sorted(self.rows, key=lambda r: r.name):
            lines.append("%-7s %-*s  %-*s  %s" % ("PASS" if row.passed else "FAIL", width, row.name,
                                                  wide, row.wanted, row.seen))
            for problem in row.problems:
                lines.append("        ! " + problem)
            if row.problems and row.command:
                lines.append("        $ " + row.command)
        text = "\n".join(lines) + "\n"
        os.makedirs(self.args.out, exist_ok=True)
        with open(self.path + ".new", "w") as f:
            f.write(text)
        os.replace(self.path + ".new", self.path)
        print("%s %s: %d rows, %d failed, %d not run, %.0f s -> %s" % (
            "PASS" if good else "FAIL", self.title, self.planned, len(failed), missing,
            time.monotonic() - self.start, self.path), flush=True)
        for row in failed[:12]:
            print("  FAIL %s: %s | %s" % (row.name, row.seen, "; ".join(row.problems)), flush=True)
        if len(failed) > 12:
            print("  … and %d more" % (len(failed) - 12), flush=True)
        self.scratch.cleanup()
        return good


def card(args):
    if args.device == "soft":
        return "softgpu"
    try:
        seen = execute(["nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                        "--format=csv,noheader"], 20)
    except OSError:
        return "no nvidia-smi"
    return "; ".join(seen.out.strip().splitlines()) if seen.status == 0 else "no nvidia-smi answer"


def header(args):
    agent = os.path.join(args.stage, "lib", "gpurecover", "libgpurecover.so")
    try:
        with open(agent, "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
    except OSError:
        digest = "not there"
    commit = "unknown"
    try:
        with open(os.path.join(args.stage, "COMMIT")) as f:
            commit = f.read().strip()
    except OSError:
        pass
    return ["date     " + datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "card     " + card(args),
            "source   " + commit,
            "agent    sha256 " + digest,
            "command  python3 " + " ".join(shlex.quote(a) for a in sys.argv)]


def programs(args):
    """The example programs that the stage holds, as (label, path, verdict); a driver form that is
    missing is an error, the nvcc forms are optional."""
    found = []
    for name, verdict in EXAMPLES.items():
        for form in (name, name + "_cudart"):
            # NVIDIA's static runtime does not start on the software device; its shared form does.
            folder = "examples"
            if args.device == "soft" and form != name:
                folder = os.path.join("examples", "shared")
            if args.only and form not in args.only and name not in args.only:
                continue
            path = os.path.join(args.stage, folder, form)
            if os.path.exists(path):
                found.append((form, path, verdict))
            elif form == name:
                raise SystemExit("not there: %s (build and stage first: scripts/stage.sh)" % path)
    return found


def baseline(check):
    """Each program alone and then under `run`, without faults: rows for both, and for each program
    that passed them (label, path, verdict, native checksum, number of launches)."""
    args, native, result = check.args, {}, {}

    def alone(label, path):
        def job():
            seen = native[label] = execute([path], 20, args.native_environment)
            problems = []
            if seen.status != 0 or not seen.checksum:
                problems.append("does not work by itself: " + seen.err.strip()[-200:])
            twin = native.get(label.removesuffix("_cudart"))
            if twin and twin.checksum and seen.checksum and twin.checksum != seen.checksum:
                problems.append("the two forms' checksums differ: " + twin.checksum)
            return Row(label + " native", seen.command, "exit 0", seen.short(), problems)
        return job

    def under_run(label, path, verdict):
        def job():
            report_path = check.report_path()
            seen = execute([args.gpurecover, "run", "-q", "--device", args.device, "--report",
                            report_path, "--", path], 20)
            report, problem = load_report(report_path)
            problems = [problem] if problem else report_problems(report)
            before = native[label]
            if (seen.status, seen.out) != (before.status, before.out):
                problems.append("not as alone: exit and stdout were " + before.short())
            if seen.err != before.err:
                problems.append("-q, but stderr has: " + seen.err.strip()[-200:])
            launches, verdicts = 0, set()
            if not problem:
                launches = report["totals"].get("launches", 0)
                verdicts = {k.get("verdict") for k in report.get("kernels", [])}
                if report["totals"].get("faults") != 0:
                    problems.append("faults without a plan")
            if not problem and launches < 4:
                problems.append("%d launches seen, at least 4 made: not attached?" % launches)
            if not problem and verdicts != {verdict}:
                problems.append("kernels' verdicts are %s" % sorted(map(str, verdicts)))
            if launches >= 4 and before.status == 0:
                with check.lock:
                    result[label] = (label, path, verdict, before.checksum, launches)
            return Row(label + " run", seen.command, "as alone, " + verdict, "%s, %d launches, %s" % (
                seen.short(), launches, "/".join(sorted(map(str, verdicts)))), problems)
        return job

    found = programs(args)
    # The driver forms first: the others are compared with them.
    for driver_form in (True, False):
        check.run_all([alone(label, path) for label, path, _ in found
                       if label.endswith("_cudart") != driver_form])
    check.run_all([under_run(*program) for program in found if program[0] in native])
    return [result[label] for label, _, _ in found if label in result]


def inject(check, path, options, quiet=True):
    """One `gpurecover inject` of `path`; returns (outcome, report or None, problems)."""
    report_path = check.report_path()
    command = [check.args.gpurecover, "inject", "--device", check.args.device]
    command += (["-q"] if quiet else []) + options
    seen = execute(command + ["--report", report_path, "--", path], check.args.each)
    report, problem = load_report(report_path)
    return seen, report, [problem] if problem else report_problems(report)


def result_problems(seen, checksum, code):
    """What the app itself shows: with `code` None the native result, else that error and no result
    taken for good."""
    problems = []
    if seen.status == 0 and seen.checksum != checksum:
        problems.append("SILENTLY WRONG: exit 0 with checksum %s, native is %s" % (
            seen.checksum, checksum))
    elif code is None and seen.status != 0:
        problems.append("exit %d, expected 0: %s" % (seen.status, seen.err.strip()[-200:]))
    elif code is not None and (seen.status != 1 or seen.cuda_error != code):
        problems.append("expected exit 1 and CUDA error %d: %s" % (code, seen.err.strip()[-200:]))
    return problems


def fault_problems(report, outcomes, total, **wanted):
    """The report's one fault: its outcome is one of `outcomes`, it is counted under totals[total],
    and its other fields are as wanted."""
    faults = report.get("faults", [])
    if len(faults) != 1:
        return ["%d faults in the report, expected 1" % len(faults)]
    fault, problems = faults[0], []
    if fault.get("outcome") not in outcomes:
        problems.append("outcome %r, expected %s (%s)" % (
            fault.get("outcome"), " or ".join(outcomes), fault.get("reason") or "no reason given"))
    elif total and report["totals"].get(total) != 1:
        problems.append("totals.%s is %r" % (total, report["totals"].get(total)))
    for key, value in wanted.items():
        if fault.get(key) != value:
            problems.append("fault.%s is %r, expected %r" % (key, fault.get(key), value))
    return problems


def outcome_of(report):
    faults = (report or {}).get("faults", [])
    return faults[0].get("outcome", "?") if len(faults) == 1 else "%d faults" % len(faults)


def main(description, section, add_options=None):
    """Parses the options that all sections share, runs `section(args)` and exits by its answer."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default="stage", help="folder made by scripts/stage.sh")
    parser.add_argument("--out", default="gpu-results", help="folder for the result files")
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
    parser.add_argument("--limit", type=float, default=300, help="seconds for this section")
    parser.add_argument("--each", type=float, default=20, help="seconds for one faulted run")
    parser.add_argument("--only", action="append", metavar="EXAMPLE", help="these examples only")
    parser.add_argument("--device", default="cuda", choices=("cuda", "soft"))
    if add_options:
        add_options(parser)
    args = parser.parse_args()
    args.native_environment = {}
    if args.device == "soft":
        soft = os.path.abspath(os.path.join(args.stage, "lib", "gpurecover", "soft"))
        args.native_environment = {"LD_LIBRARY_PATH": soft}
    args.gpurecover = os.path.join(args.stage, "bin", "gpurecover")
    if not os.path.exists(args.gpurecover):
        raise SystemExit("not there: %s (build and stage first: scripts/stage.sh)" % args.gpurecover)

    # `timeout` above us sends TERM: start nothing more, and leave by way of finish().
    def over(*_):
        args.limit = 0

    signal.signal(signal.SIGTERM, over)
    sys.exit(0 if section(args) else 1)
