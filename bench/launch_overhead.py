#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `gpurecover run` adds to a kernel launch, beside an empty CUPTI callback.

Runs examples/many_small in four ways, interleaved, a repetition of each after the other, in an order
drawn anew for each repetition (the seed is fixed and printed):

  native    alone
  empty     with bench/libempty_callback.so: CUPTI callbacks on the launch calls that do nothing
  replay    gpurecover run --level replay --standby off: recovery in place
  takeover  gpurecover run (the default): besides, a log of what is under way, with markers and
            copies where they are needed, so that a sticky error can be survived

and in two shapes:

  stream    all launches without waiting: from the first launch to the end of the last kernel. As
            soon as the driver's queue is full, this is the larger of the CPU's and the GPU's time
  batch     waiting after every 256 launches, counting the launch calls alone: the CPU's time

All of them on the same two cores of one socket, where the machine lets us choose. Repetitions go on
up to --repetitions or --seconds, whichever comes first.

Prints the median time per launch of each, the ratio to native, and the difference to `empty`: the
median of the differences within each repetition, and the interval that holds the true median with
95 % confidence (order statistics: no assumption on how the times are distributed). Both `replay`
and `takeover` are held against the budget of 0.3 us. The verdict is the median's; where the interval reaches across the budget, the
verdict says so.

At last, where bench_launch_path is there, what the agent's own code costs in process, its callback
called directly: of the difference, the part that is the agent's instructions (and, in `takeover`, the
markers and copies that it asks the driver for).

Exit status: 0 within the budget, 1 above it, 2 not measured.
"""
import argparse
import datetime
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

BUDGET_NS = 300.0
SEED = 20260101
MIN_REPETITIONS = 6  # fewer have no 95 % interval
SHAPES = {"stream": (0, "ns_per_launch"), "batch": (256, "call_ns_per_launch")}


LEVELS = {"replay": ["--level", "replay", "--standby", "off"], "takeover": []}


class NotMeasured(Exception):
    pass


def run_once(command, env, limit):
    """Runs one process to its end or to `limit` seconds; returns (status, stdout, stderr)."""
    bounded = ["timeout", "-k", "5", str(limit)] + command
    try:
        done = subprocess.run(bounded, env=env, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", timeout=limit + 15)
    except subprocess.TimeoutExpired:
        raise NotMeasured("no end within %d s: %s" % (limit + 15, " ".join(command)))
    return done.returncode, done.stdout, done.stderr


def measure(way, app, shape, args, report):
    """One run; returns the time per launch in nanoseconds, and the checksum."""
    batch, key = SHAPES[shape]
    command = [app, "--launches", str(args.launches), "--warmup", str(args.warmup),
               "--batch", str(batch), "--time"]
    env = {k: v for k, v in os.environ.items() if k != "CUDA_INJECTION64_PATH"}
    if way == "empty":
        env["CUDA_INJECTION64_PATH"] = os.path.abspath(args.injection)
    elif way in LEVELS:
        command = [args.gpurecover, "run", "-q"] + LEVELS[way] + ["--report", report, "--"] + command
    status, out, err = run_once(command, env, args.timeout)
    where = "%s, %s: " % (way, shape)
    if status != 0:
        raise NotMeasured(where + "exit %d: %s" % (status, (err or out).strip()[-400:]))
    spent = re.search(r"\b%s=([0-9.]+)" % key, err)
    checksum = re.search(r"^checksum=([0-9a-f]{16})$", out, re.M)
    if not spent or not checksum:
        raise NotMeasured(where + "no time or checksum in the output: %s" % (out + err)[-400:])
    if way == "empty":
        calls = re.search(r"empty_callback_calls=(\d+)", err)
        # One callback before and one after each launch; else it is not what it claims to be.
        if not calls or int(calls.group(1)) < 2 * args.launches:
            raise NotMeasured(where + "the empty callback was not called: %s" % err[-400:])
    if way in LEVELS:
        with open(report) as f:
            launches = json.load(f)["totals"]["launches"]
        if launches != args.launches:
            raise NotMeasured(where + "the report has %s launches, not %d: not attached?"
                              % (launches, args.launches))
    return float(spent.group(1)), checksum.group(1)


def two_cores():
    """Two cores of the socket that we run on, not two threads of one core; else None."""
    def topology(cpu, what):
        with open("/sys/devices/system/cpu/cpu%d/topology/%s" % (cpu, what)) as f:
            return f.read().strip()
    try:
        cores = {}
        for cpu in sorted(os.sched_getaffinity(0), reverse=True):  # the first ones serve interrupts
            socket = topology(cpu, "physical_package_id")
            cores.setdefault(socket, {}).setdefault(topology(cpu, "core_id"), cpu)
        most = max(cores.values(), key=len)
        return sorted(most.values(), reverse=True)[:2] if len(most) >= 2 else None
    except (OSError, AttributeError, ValueError):
        return None


def median_interval(values):
    """The 95 % confidence interval of the median by order statistics; None if there are too few."""
    n = len(values)
    below = 0.0
    rank = 0  # the largest with P(Binomial(n, 1/2) < rank) <= 2.5 %
    while below + math.comb(n, rank) / 2 ** n <= 0.025:
        below += math.comb(n, rank) / 2 ** n
        rank += 1
    ordered = sorted(values)
    return (ordered[rank - 1], ordered[n - rank]) if rank > 0 else None


def in_process(args, options):
    """What bench_launch_path says: {shape: ns above an empty callback}; None if it is not there."""
    program = os.path.join(args.stage, "bench", "bench_launch_path")
    if not os.path.exists(program):
        return None
    status, out, err = run_once([args.gpurecover, "run", "-q", *options, "--", program],
                                dict(os.environ), args.timeout)
    rows = re.findall(r"^(\w+) +[0-9.]+ +[0-9.]+ +(-?[0-9.]+)$", out, re.M)
    if status != 0 or not rows:
        raise NotMeasured("bench_launch_path: exit %d: %s" % (status, (err or out).strip()[-400:]))
    return {shape: float(above) for shape, above in rows}


def card():
    try:
        done = subprocess.run(
            ["timeout", "-k", "5", "20", "nvidia-smi", "--query-gpu=name,driver_version",
             "--format=csv,noheader"], capture_output=True, text=True)
        return done.stdout.strip().splitlines()[0] if done.stdout.strip() else "no nvidia-smi answer"
    except OSError:
        return "no nvidia-smi"


def table(result):
    lines = ["%-8s %-8s %10s %10s %10s %8s %10s %21s %s" % (
        "shape", "way", "median ns", "min", "max", "/native", "-empty ns", "95 % of its median",
        "budget")]
    for shape, ways in result["shapes"].items():
        for way, r in ways.items():
            verdict = r.get("verdict", "")
            interval = r["above_empty_95_ns"]
            lines.append("%-8s %-8s %10.1f %10.1f %10.1f %8.3f %+10.1f %21s %s" % (
                shape, way, r["median_ns"], r["min_ns"], r["max_ns"], r["ratio_to_native"],
                r["above_empty_ns"],
                "%+.1f .. %+.1f" % interval if interval and way != "empty" else "", verdict))
    return "\n".join(lines)


def summarise(samples):
    shapes = {}
    for shape, ways in samples.items():
        native = statistics.median(ways["native"])
        shapes[shape] = {}
        for way, values in ways.items():
            median = statistics.median(values)
            # Within each repetition, one right after the other: a drift of the clocks is in both.
            differences = [v - e for v, e in zip(values, ways["empty"])]
            above = statistics.median(differences)
            interval = median_interval(differences)
            row = {"median_ns": median, "min_ns": min(values), "max_ns": max(values),
                   "ratio_to_native": median / native, "above_empty_ns": above,
                   "above_empty_95_ns": interval, "samples_ns": values}
            if way in LEVELS:
                row["budget_ns"] = BUDGET_NS
                row["verdict"] = "PASS (<= %.0f)" % BUDGET_NS if above <= BUDGET_NS \
                    else "FAIL (> %.0f)" % BUDGET_NS
                if interval is None or interval[0] <= BUDGET_NS < interval[1]:
                    row["verdict"] += ", not certain: the interval reaches across"
            shapes[shape][way] = row
    return shapes


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(here)
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default=root, help="build or stage folder (default: %(default)s)")
    parser.add_argument("--app", default="many_small", help="many_small or many_small_cudart")
    parser.add_argument("--launches", type=int, default=20000)
    parser.add_argument("--warmup", type=int, default=2000, help="launches that are not timed")
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=100,
                        help="no further repetition is begun that would not end by then")
    parser.add_argument("--no-pin", action="store_true", help="run on any core")
    parser.add_argument("--shape", action="append", choices=sorted(SHAPES), help="default: both")
    parser.add_argument("--timeout", type=int, default=60, help="seconds for one run")
    parser.add_argument("--json", help="write the result there")
    parser.add_argument("--text", help="write the table there too")
    args = parser.parse_args()
    if args.warmup >= args.launches or args.repetitions < MIN_REPETITIONS:
        parser.error("--launches must be above --warmup, --repetitions at least %d" %
                     MIN_REPETITIONS)
    args.gpurecover = os.path.join(args.stage, "bin", "gpurecover")
    args.injection = os.path.join(args.stage, "bench", "libempty_callback.so")
    app = os.path.join(args.stage, "examples", args.app)
    for path in (args.gpurecover, args.injection, app):
        if not os.path.exists(path):
            print("launch_overhead: not there: %s (build first, or give --stage)" % path,
                  file=sys.stderr)
            return 2

    ways = ["native", "empty", "replay", "takeover"]
    shapes = args.shape or list(SHAPES)
    samples = {shape: {way: [] for way in ways} for shape in shapes}
    checksums = set()
    cores = None if args.no_pin else two_cores()
    if cores:
        os.sched_setaffinity(0, cores)  # of all that we start, too
    order = random.Random(SEED)
    start = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            for repetition in range(args.repetitions):
                spent = time.monotonic() - start
                if repetition >= MIN_REPETITIONS and \
                        spent + spent / repetition > args.seconds:
                    break
                for shape in shapes:
                    # Another order each time, so that a drift of the clocks falls on all alike.
                    for way in order.sample(ways, len(ways)):
                        per_launch, checksum = measure(way, app, shape, args, report)
                        samples[shape][way].append(per_launch)
                        checksums.add(checksum)
        if len(checksums) != 1:
            raise NotMeasured("results differ between runs: %s" % sorted(checksums))
        own_code = {way: in_process(args, options) for way, options in LEVELS.items()}
    except (NotMeasured, OSError, ValueError, KeyError) as problem:
        print("launch_overhead: not measured: %s" % problem, file=sys.stderr)
        return 2

    result = {"schema": "gpurecover.bench.launch_overhead/1",
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
              "card": card(), "app": args.app, "launches": args.launches, "warmup": args.warmup,
              "repetitions": len(samples[shapes[0]]["native"]), "seed": SEED, "cores": cores,
              "in_process_above_empty_ns": own_code, "checksum": checksums.pop(),
              "budget_ns": BUDGET_NS, "shapes": summarise(samples)}
    text = "%s, %s\n%s: %d launches (%d not timed), %d interleaved repetitions, order by seed %d, " \
        "%s\n\n%s\n" % (
            result["date"], result["card"], args.app, args.launches, args.warmup,
            result["repetitions"], SEED,
            "on cores %d and %d" % tuple(cores) if cores else "on any core", table(result))
    for way, rows in own_code.items():
        if rows:
            text += "\nthe agent's own code in process, above an empty callback, %s: %s" % (
                way, ", ".join("%s %.0f ns" % row for row in rows.items()))
    text += "\n"
    print(text, end="")
    for path, content in ((args.json, json.dumps(result, indent=1) + "\n"), (args.text, text)):
        if path:
            with open(path + ".new", "w") as f:
                f.write(content)
            os.replace(path + ".new", path)
    verdicts = [r[way]["verdict"] for r in result["shapes"].values() for way in LEVELS]
    return 0 if all(v.startswith("PASS") for v in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
