#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `gpurecover run` adds to a kernel launch, beside an empty CUPTI callback.

Runs examples/many_small in four ways, interleaved, a repetition of each after the other:

  native    alone
  empty     with bench/libempty_callback.so: CUPTI callbacks on the launch calls that do nothing
  replay    gpurecover run --level replay
  full      gpurecover run (the default level)

and in two shapes:

  stream    all launches without waiting: from the first launch to the end of the last kernel. As
            soon as the driver's queue is full, this is the larger of the CPU's and the GPU's time
  batch     waiting after every 256 launches, counting the launch calls alone: the CPU's time

Prints the median time per launch of each, ratios to native, and the difference to `empty`, which
the budget (at most 0.3 us with --level replay) is about. Exit status: 0 within
the budget, 1 above it, 2 not measured.
"""
import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

BUDGET_NS = 300.0
SHAPES = {"stream": (0, "ns_per_launch"), "batch": (256, "call_ns_per_launch")}


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
    elif way in ("replay", "full"):
        command = [args.gpurecover, "run", "-q", "--level", way, "--report", report, "--"] + command
    status, out, err = run_once(command, env, args.timeout)
    where = "%s, %s: " % (way, shape)
    if status != 0:
        raise NotMeasured(where + "exit %d: %s" % (status, (err or out).strip()[-400:]))
    time = re.search(r"\b%s=([0-9.]+)" % key, err)
    checksum = re.search(r"^checksum=([0-9a-f]{16})$", out, re.M)
    if not time or not checksum:
        raise NotMeasured(where + "no time or checksum in the output: %s" % (out + err)[-400:])
    if way == "empty":
        calls = re.search(r"empty_callback_calls=(\d+)", err)
        # One callback before and one after each launch; else it is not what it claims to be.
        if not calls or int(calls.group(1)) < 2 * args.launches:
            raise NotMeasured(where + "the empty callback was not called: %s" % err[-400:])
    if way in ("replay", "full"):
        with open(report) as f:
            launches = json.load(f)["totals"]["launches"]
        if launches != args.launches:
            raise NotMeasured(where + "the report has %s launches, not %d: not attached?"
                              % (launches, args.launches))
    return float(time.group(1)), checksum.group(1)


def card():
    try:
        done = subprocess.run(
            ["timeout", "-k", "5", "20", "nvidia-smi", "--query-gpu=name,driver_version",
             "--format=csv,noheader"], capture_output=True, text=True)
        return done.stdout.strip().splitlines()[0] if done.stdout.strip() else "no nvidia-smi answer"
    except OSError:
        return "no nvidia-smi"


def table(result):
    lines = ["%-8s %-8s %10s %10s %10s %8s %12s %s" % (
        "shape", "way", "median ns", "min", "max", "/native", "-empty ns", "budget")]
    for shape, ways in result["shapes"].items():
        for way, r in ways.items():
            verdict = r.get("verdict", "")
            lines.append("%-8s %-8s %10.1f %10.1f %10.1f %8.3f %+12.1f %s" % (
                shape, way, r["median_ns"], r["min_ns"], r["max_ns"], r["ratio_to_native"],
                r["above_empty_ns"], verdict))
    return "\n".join(lines)


def summarise(samples):
    shapes = {}
    for shape, ways in samples.items():
        native = statistics.median(ways["native"])
        shapes[shape] = {}
        for way, values in ways.items():
            median = statistics.median(values)
            # Within each repetition, one right after the other: a drift of the clocks is in both.
            above = statistics.median([v - e for v, e in zip(values, ways["empty"])])
            row = {"median_ns": median, "min_ns": min(values), "max_ns": max(values),
                   "ratio_to_native": median / native, "above_empty_ns": above,
                   "samples_ns": values}
            if way == "replay":
                row["budget_ns"] = BUDGET_NS
                row["verdict"] = "PASS (<= %.0f)" % BUDGET_NS if above <= BUDGET_NS \
                    else "FAIL (> %.0f)" % BUDGET_NS
            shapes[shape][way] = row
    return shapes


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(here)
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default=root, help="build or stage folder (default: %(default)s)")
    parser.add_argument("--app", default="many_small", help="many_small or many_small_cudart")
    parser.add_argument("--launches", type=int, default=40000)
    parser.add_argument("--warmup", type=int, default=2000, help="launches that are not timed")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--shape", action="append", choices=sorted(SHAPES), help="default: both")
    parser.add_argument("--timeout", type=int, default=60, help="seconds for one run")
    parser.add_argument("--json", help="write the result there")
    parser.add_argument("--text", help="write the table there too")
    args = parser.parse_args()
    if args.warmup >= args.launches or args.repetitions < 1:
        parser.error("--launches must be above --warmup, --repetitions at least 1")
    args.gpurecover = os.path.join(args.stage, "bin", "gpurecover")
    args.injection = os.path.join(args.stage, "bench", "libempty_callback.so")
    app = os.path.join(args.stage, "examples", args.app)
    for path in (args.gpurecover, args.injection, app):
        if not os.path.exists(path):
            print("launch_overhead: not there: %s (build first, or give --stage)" % path,
                  file=sys.stderr)
            return 2

    ways = ["native", "empty", "replay", "full"]
    shapes = args.shape or list(SHAPES)
    samples = {shape: {way: [] for way in ways} for shape in shapes}
    checksums = set()
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            for repetition in range(args.repetitions):
                for shape in shapes:
                    # Another order each time, so that a drift of the clocks falls on all alike.
                    turn = repetition % len(ways)
                    for way in ways[turn:] + ways[:turn]:
                        time, checksum = measure(way, app, shape, args, report)
                        samples[shape][way].append(time)
                        checksums.add(checksum)
        if len(checksums) != 1:
            raise NotMeasured("results differ between runs: %s" % sorted(checksums))
    except (NotMeasured, OSError, ValueError, KeyError) as problem:
        print("launch_overhead: not measured: %s" % problem, file=sys.stderr)
        return 2

    result = {"schema": "gpurecover.bench.launch_overhead/1",
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
              "card": card(), "app": args.app, "launches": args.launches, "warmup": args.warmup,
              "repetitions": args.repetitions, "checksum": checksums.pop(),
              "budget_ns": BUDGET_NS, "shapes": summarise(samples)}
    text = "%s, %s\n%s: %d launches (%d not timed), median of %d interleaved repetitions\n\n%s\n" % (
        result["date"], result["card"], args.app, args.launches, args.warmup, args.repetitions,
        table(result))
    print(text, end="")
    for path, content in ((args.json, json.dumps(result, indent=1) + "\n"), (args.text, text)):
        if path:
            with open(path + ".new", "w") as f:
                f.write(content)
            os.replace(path + ".new", path)
    verdicts = [r["replay"]["verdict"] for r in result["shapes"].values()]
    return 0 if all(v.startswith("PASS") for v in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
