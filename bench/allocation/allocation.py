#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What allocations cost when they are steered: alone, and under `gpurecover run`, side by side.

Alone means without gpurecover; with --device soft, where there is no driver without it, `--level observe`.
"""
import argparse
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def measure(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"allocation.py: {' '.join(map(str, command))} ended with {done.returncode}\n{done.stderr}")
    rows = {}
    for line in done.stdout.splitlines():
        name, size, *values = line.split()
        rows[name, int(size)] = [float(value) for value in values]
    return rows


def show(size):
    for unit, name in (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", type=pathlib.Path, default=HERE.parent, help="build folder or stage")
    parser.add_argument("--device", default="cuda", choices=("cuda", "soft"))
    parser.add_argument("--json", type=pathlib.Path, help="write the numbers there too")
    options = parser.parse_args()
    program = options.stage / "bench/allocation_program"
    run = [options.stage / "bin/gpurecover", "run", "-q", "--device", options.device]
    alone = [] if options.device == "cuda" else [*run, "--level", "observe", "--"]
    forms = {"alone": measure([*alone, program]),
             "--no-steer": measure([*run, "--no-steer", "--", program]),
             "steered": measure([*run, "--", program])}
    print("microseconds, median: alloc / free")
    print(f"{'':16}" + "".join(f"{form:>24}" for form in forms))
    for key in forms["alone"]:
        if key[0] in ("memory", "left"):
            continue
        cells = "".join("{:>24}".format("{:.1f} / {:.1f}".format(*rows[key])) if key in rows else f"{'-':>24}"
                        for rows in forms.values())
        print(f"{key[0]:7}{show(key[1]):>9}{cells}")
    for name in "memory", "left":
        cells = "".join("{:>24}".format(show(int(value[0]))) for rows in forms.values()
                        for key, value in rows.items() if key[0] == name)
        load = next(key[1] for key in forms["alone"] if key[0] == name)
        print(f"{'taken' if name == 'memory' else name:7}{show(load) if load else '':>9}{cells}")
    if options.json:
        options.json.write_text(json.dumps(
            {form: [[*key, *value] for key, value in rows.items()] for form, rows in forms.items()}, indent=1))


if __name__ == "__main__":
    main()
