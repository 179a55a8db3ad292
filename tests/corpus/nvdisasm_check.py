#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the decoder of machine code against nvdisasm.

nvdisasm_check.py [--mutate N] DECODE_DUMP FILE...

Each FILE (fatbin, cubin) is decoded by both. Of every instruction that the decoder reaches, the
mnemonic and the guard must agree; of those that it follows (arithmetic of addresses, conditions,
memory, branches) the registers, predicates, constants, immediates, signs, kinds and sizes too; of
the others the registers that they write.

With --mutate: N instructions of each architecture, of each a random bit flipped. What nvdisasm does
not take for an instruction, or the decoder refuses, is counted; the others are compared as above, so
that a bit with a meaning that the decoder does not see is found.

nvdisasm is GPURECOVER_NVDISASM or the one in PATH; without one, the exit status is 77.
NVDISASM_CHECK_ALL=1 prints every difference instead of the first of each kind.
"""
import collections
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

FOLLOWED = set(
    "MOV UMOV SEL USEL ISETP UISETP IADD3 UIADD3 LEA ULEA LOP3 ULOP3 PRMT UPRMT IMNMX VIMNMX UVIMNMX SHF "
    "USHF IMAD UIMAD VIADD VIADDMNMX IADD IABS FSETP UFSETP PLOP3 UPLOP3 R2UR".split())
LOADS = {"LDG": "ld.global", "LD": "ld.generic", "LDL": "ld.local", "LDS": "ld.shared"}
STORES = {"STG": "st.global", "ST": "st.generic", "STL": "st.local", "STS": "st.shared"}
ATOMICS = {"ATOMG": "atom.global", "ATOM": "atom.generic", "ATOMS": "atom.shared",
           "RED": "red.global", "REDG": "red.global"}
# Results whose number of registers is not modelled: the first one is among those written.
VARIABLE = set("HMMA IMMA BMMA DMMA QMMA OMMA TEX TLD TLD4 TXD TMML TXQ SULD SUATOM".split())

REGISTER = re.compile(r"^(U?R)(\d+|Z)$")
PREDICATE = re.compile(r"^(U?P)(\d|T)$")
SPECIAL = {"SR_TID.X": 0x21, "SR_TID.Y": 0x22, "SR_TID.Z": 0x23, "SR_CTAID.X": 0x25,
           "SR_CTAID.Y": 0x26, "SR_CTAID.Z": 0x27, "SR_LANEID": 0}
COMPARISONS = {"F": 0, "LT": 1, "EQ": 2, "LE": 3, "GT": 4, "NE": 5, "GE": 6, "T": 7}


FLOAT_COMPARISONS = "F LT EQ LE GT NE GE NUM NAN LTU EQU LEU GTU NEU GEU T".split()


def float_bits(text):
    """1.5 as nvdisasm writes it, as the bits of a 32-bit number; registers stay."""
    try:
        value = {"+INF": float("inf"), "-INF": float("-inf"), "+QNAN": float("nan")}.get(text)
        return "0x%x" % struct.unpack("<I", struct.pack("<f", value or float(text)))[0]
    except ValueError:
        return text


def words(register, count):
    """R4 and 2: R4, R5; fixed ones stay."""
    kind, number = REGISTER.match(register).groups()
    if number == "Z":
        return [register] * count
    return [kind + str(int(number) + k) for k in range(count)]


def plain(operand):
    """An operand without sign, reuse hint and width; and whether it is negated."""
    text = operand.strip()
    negated = False
    while text and text[0] in "-~!|":
        negated ^= text[0] in "-~!"
        text = text[1:]
    text = text.rstrip("|")
    if not text.startswith("c[") and not text.startswith("cx["):
        text = re.sub(r"\.(reuse|64|U32|H0_H0|H1_H1|F32|U8|U16|X\d+)\b", "", text)
    return text, negated


def number(text, bits=32):
    try:
        return int(text, 16) % (1 << bits)
    except ValueError:
        return None


def split(text):
    parts, depth, current = [], 0, ""
    for c in text:
        depth += (c in "[(") - (c in "])")
        if c == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += c
    if current.strip():
        parts.append(current.strip())
    return parts


class Instruction:
    def __init__(self, guard, text):
        self.guard = guard
        head, _, rest = text.partition(" ")
        parts = head.split(".")
        self.name, self.mods = parts[0], parts[1:]
        self.text = text
        self.operands = split(rest)

    def has(self, *mods):
        return any(m in self.mods for m in mods)

    def result_words(self):
        m = self.mods
        if self.name in ("LDSM",):
            return 4 if "4" in m else 2 if "2" in m else 1
        if self.name in ("CS2R", "CS2UR"):
            return 1 if "32" in m else 2
        if self.name in ("DADD", "DMUL", "DFMA", "FADD2", "FMUL2", "FFMA2", "LEPC"):
            return 2
        if self.name in ("IMAD", "UIMAD"):
            return 2 if "WIDE" in m else 1
        if self.name in ("F2F", "FRND"):
            first = [x for x in m if re.match(r"^[B]?F(16|32|64)$", x)]
            return 2 if first and first[0].endswith("64") else 1
        if self.name == "I2F":
            return 2 if "F64" in m else 1
        if self.name == "F2I":
            return 2 if self.has("S64", "U64") else 1
        if self.name in ("ISETP", "UISETP", "SHF", "USHF"):
            return 1
        if "128" in m:
            return 4
        return 2 if self.has("64", "U64", "S64", "F64") else 1

    def access_bytes(self):
        if self.has("U8", "S8"):
            return 1
        if self.has("U16", "S16"):
            return 2
        if "128" in self.mods:
            return 16
        return 8 if self.has("64", "U64", "S64", "F64") else 4

    def split_results(self):
        """Predicates and register that are written, and what is read."""
        o = list(self.operands)
        predicates, register = [], None
        if self.name in NO_RESULT:
            return [], None, o
        first = 1 if self.name in ("VOTE", "VOTEU") else 2
        while o and PREDICATE.match(o[0]) and len(predicates) < first:
            predicates.append(o.pop(0))
        if o and REGISTER.match(plain(o[0])[0]) and self.name not in ONLY_PREDICATES:
            register = plain(o.pop(0))[0]
            most = 1 if self.name in ("VOTE", "VOTEU", "SHFL", "MATCH", "ELECT", "P2R",
                                      "UP2UR") else 2
            if self.name in ("SEL", "USEL", "MOV", "UMOV", "FMNMX", "P2R", "UP2UR", "ELECT"):
                most = 0
            while o and PREDICATE.match(o[0]) and len(predicates) < most:
                predicates.append(o.pop(0))
        return predicates, register, o


NO_RESULT = set(
    "STG ST STL STS RED REDG BRA EXIT RET CALL BSSY BSYNC NOP BAR MEMBAR DEPBAR LDGDEPBAR ERRBAR "
    "WARPSYNC YIELD BREAK CCTL NANOSLEEP LDGSTS UBLKCP UBLKRED UBLKPF UTMALDG UTMASTG UTMAREDG "
    "UTMACMDFLUSH UTMACCTL FENCE STSM PREEXIT ACQBULK R2P BRX BRXU BPT CGAERRBAR SUST "
    "UCGABAR_ARV UCGABAR_WAIT ARRIVES ENDCOLLECTIVE SUATOM".split())
ONLY_PREDICATES = set("ISETP UISETP FSETP UFSETP DSETP HSETP2 PLOP3 UPLOP3 FCHK".split())


def memory_operand(text, pairs):
    """Registers of an address, without fixed ones, and its displacement."""
    registers, offset = [], 0
    inner = re.findall(r"\[([^\]]*)\]", text)[-1]
    for term in inner.split("+"):
        term = term.strip()
        base = re.sub(r"\.(64|U32|X4|X8|X16|reuse)", "", term)
        if REGISTER.match(base):
            if base.endswith("Z"):
                continue
            wide = ".64" in term or (pairs and ".U32" not in term)
            registers += words(base, 2 if wide else 1)
        elif term:
            offset += int(term, 16)
    return registers, offset


def no_fixed(registers):
    return sorted(r for r in registers if not r.endswith("Z"))


def constant_words(text, count):
    m = re.match(r"^c\[(0x[0-9a-f]+)\]\[(0x[0-9a-f]+)\]$", text)
    if not m:
        return None
    return ["c[%s][0x%x]" % (m.group(1), int(m.group(2), 16) + 4 * k) for k in range(count)]


class Checker:
    def __init__(self):
        self.counts = collections.Counter()
        self.differences = []
        self.kinds = collections.Counter()
        self.all = os.environ.get("NVDISASM_CHECK_ALL") is not None

    def differ(self, kind, place, ours, theirs):
        self.counts["different"] += 1
        self.kinds[kind] += 1
        if self.all or self.kinds[kind] <= 3:
            self.differences.append("%s: %s\n    nvdisasm: %s\n    ours: %s" %
                                    (place, kind, theirs, json.dumps(ours)))

    def check(self, ours, theirs, place, labels):
        i = theirs
        if i.guard == "!PT":
            return
        first = self.counts["different"]
        self.counts["instructions"] += 1

        def expect(kind, a, b):
            if a != b:
                self.differ("%s %s: ours %s, theirs %s" % (i.name, kind, a, b) if self.all else
                            "%s %s" % (i.name, kind), place, ours, ("@%s " % i.guard if i.guard
                                                                    else "") + i.text)

        expect("mnemonic", ours["name"], i.name)
        if ours["name"] != i.name:
            return
        guard = i.guard or ""
        if "?" in ours["guard"]:
            expect("guard", ours["guard"].replace("?", ""), guard.replace("U", ""))
        else:
            expect("guard", ours["guard"], guard)
        predicates, register, sources = i.split_results()
        written = set(p for p in predicates if not p.endswith("T"))
        count = i.result_words()
        if register is not None:
            written |= set(r for r in words(register, count) if not r.endswith("Z"))
        sure, maybe = set(ours["writes"]), set(ours["may_write"])
        if i.name in VARIABLE:
            missing = written - sure - maybe
            expect("results", sorted(missing), [])
        elif i.name in ("R2P", "CALL"):
            pass  # all predicates; what the convention lets a function change
        else:
            expect("results", sorted((sure | maybe) & written if maybe else sure), sorted(written))
            if maybe:
                expect("sure results", sorted(sure - written), [])
        numbers = ours["numbers"]
        if "target" in numbers and i.name in ("BRA", "CALL"):
            target = re.search(r"`\(([^)]*)\)", i.text)
            at = labels.get(target.group(1)) if target else None
            if target and at is None and target.group(1).startswith("$"):
                at = None
            if at is not None:
                expect("target", numbers["target"], at)
                self.counts["targets"] += 1
        if i.name in LOADS or i.name in STORES or i.name in ATOMICS:
            self.memory(ours, i, sources, expect)
            self.counts["memory"] += 1
        elif i.name in ("LDC", "ULDC", "LDCU"):
            self.constant_load(ours, sources, count, expect)
            self.counts["followed"] += 1
        elif i.name in ("S2R", "S2UR"):
            if sources[0] in SPECIAL:
                expect("special register", numbers.get("special"), SPECIAL[sources[0]])
            self.counts["followed"] += 1
        elif i.name in FOLLOWED and not i.has("HI_") and not ours["opaque"]:
            try:
                self.arithmetic(ours, i, sources, expect)
                self.counts["followed"] += 1
            except (KeyError, StopIteration):
                self.counts["by results"] += 1  # a form that is not followed
        elif i.name == "LDGSTS":
            to, offset = memory_operand(i.operands[0], False)
            source, offset2 = memory_operand(i.operands[1], True)
            expect("registers", no_fixed(ours["reads"]), no_fixed(to + source))
            expect("displacements", [numbers["offset"], numbers["offset2"]], [offset, offset2])
            self.counts["memory"] += 1
        else:
            self.counts["by results"] += 1
        if self.counts["different"] != first:
            self.counts["instructions that differ"] += 1

    def memory(self, ours, i, sources, expect):
        numbers = ours["numbers"]
        kind = {**LOADS, **STORES, **ATOMICS}[i.name]
        shared = "shared" in kind or "local" in kind
        at = next(k for k, o in enumerate(sources) if "[" in o)
        registers, offset = memory_operand(sources[at], not shared)
        if "described" not in sources[at] and i.name == "ATOMS" and ours["memory"] == "st.shared":
            return  # a store of what is not followed: its registers are checked as results
        data = [plain(o)[0] for o in sources[at + 1:]]
        data = [o for o in data if REGISTER.match(o)]
        width = i.access_bytes()
        vector = [int(m[1:]) for m in i.mods if re.match(r"^x\d$", m)]
        for d in data:
            registers += [r for r in words(d, max(1, width // 4)) if not r.endswith("Z")]
        expect("kind", ours["memory"], kind)
        expect("displacement", numbers.get("offset"), offset)
        expect("registers", no_fixed([r for r in ours["reads"] if REGISTER.match(r)]),
               sorted(registers))
        if i.name in ATOMICS:
            expect("size", max(4, numbers.get("bytes")), max(4, width))
        else:
            expect("size", numbers.get("bytes"), width)
            if i.name in LOADS:
                expect("sign", numbers.get("signed"), int(i.has("S8", "S16")))

    def constant_load(self, ours, sources, count, expect):
        expected = constant_words(sources[0], count)
        if expected is None:
            registers = [r for r in re.findall(r"U?R\d+", sources[0])]
            expect("registers", no_fixed([r for r in ours["reads"] if REGISTER.match(r)]),
                   sorted(registers))
        elif not ours["memory"]:
            expect("constants", [r for r in ours["reads"] if r.startswith("c[")], expected)

    def arithmetic(self, ours, i, sources, expect):
        numbers = ours["numbers"]
        mine = [r for r in ours["reads"] if not PREDICATE.match(r.lstrip("!"))]
        my_predicates = sorted(r for r in ours["reads"]
                               if PREDICATE.match(r.lstrip("!")) and not r.endswith("T"))
        theirs, signs, predicates, fixed = [], [], [], []
        for o in sources:
            text, negated = plain(o)
            if PREDICATE.match(text):
                if not text.endswith("T"):
                    predicates.append(("!" if negated else "") + text)
                continue
            bits = 64 if i.has("64") and i.name in ("MOV", "UMOV") else 32
            if number(text, bits) is not None:
                value = number(text, bits)
                if negated:
                    value = -value % (1 << bits)
                    negated = False
                theirs.append("0x%x" % value)
            else:
                theirs.append(text)
            signs.append(negated)
        if i.name == "R2UR":
            theirs = theirs[:1]
            fixed = None
        pairs = i.has("64")
        if i.name == "UIADD3" and pairs and theirs[-1] == "URZ":
            theirs.pop()  # a third one makes the result unknown to us
            signs.pop()
        wide_last = i.name in ("IMAD", "UIMAD") and "WIDE" in i.mods
        if i.name in ("LEA", "ULEA"):
            shift = theirs.pop()
            signs.pop()
            expect("shift", "0x%x" % numbers["shift"], shift)
            expect("form", [numbers["high"], numbers["extended"], numbers["sign-extended"]],
                   [int("HI" in i.mods), int("X" in i.mods), int("SX32" in i.mods)])
            mine = mine[:len(theirs)]
        if i.name in ("LOP3", "ULOP3"):
            table = theirs.pop()
            signs.pop()
            expect("table", "0x%x" % numbers["table"], table)
        if i.name in ("PLOP3", "UPLOP3"):
            tables = [number(t) for t in theirs]
            theirs = []
            expect("tables", [numbers["table"], numbers["table2"]], tables)
            signs = []
        if i.name in ("ISETP", "UISETP"):
            how = next(m for m in i.mods if m in COMPARISONS)
            expect("comparison", numbers["compare"], COMPARISONS[how])
            expect("sign", numbers["signed"], int(not i.has("U32", "U64")))
            expect("form", [numbers["extended"], numbers["combine"]],
                   [int("EX" in i.mods), ["AND", "OR", "XOR"].index(
                       next(m for m in i.mods if m in ("AND", "OR", "XOR")))])
            pairs = i.has("64", "U64", "S64")
            expect("width", numbers["wide"], int(pairs))
        if i.name in ("SHF", "USHF"):
            kind = ["S64", "U64", "S32", "U32"]
            expect("form", [numbers["right"], numbers["type"], numbers["wrap"], numbers["high"]],
                   [int("R" in i.mods), kind.index(next(m for m in i.mods if m in kind)),
                    int("W" in i.mods), int("HI" in i.mods)])
        if i.name in ("FSETP", "UFSETP"):
            how = next(m for m in i.mods if m in FLOAT_COMPARISONS)
            expect("comparison", numbers["compare"], FLOAT_COMPARISONS.index(how))
            theirs = [float_bits(o) if re.match(r"^[-+]?[\dIQ]", o) else plain(o)[0] for o in sources
                      if not PREDICATE.match(plain(o)[0])]
        if i.name in ("IMNMX", "VIMNMX", "UVIMNMX", "VIADDMNMX"):
            expect("sign", numbers["signed"], int("U32" not in i.mods))
        if i.name in ("IMAD", "UIMAD") and wide_last:
            expect("sign", numbers["signed"], int("U32" not in i.mods))
        if pairs or wide_last:
            wider = []
            for k, t in enumerate(theirs):
                count = 2 if pairs or k == len(theirs) - 1 else 1
                if REGISTER.match(t):
                    wider += words(t, count)
                elif constant_words(t, count):
                    wider += constant_words(t, count)
                else:
                    wider.append(t)
            theirs = wider
        expect("operands", mine, theirs)
        expect("predicates", my_predicates, sorted(predicates))
        if "negated" in numbers:
            mask = sum(1 << k for k, s in enumerate(signs) if s)
            if i.name in ("IMAD", "UIMAD"):
                mask = ((mask & 1) ^ (mask >> 1 & 1)) | (mask & 4)
            negated = numbers["negated"] & 7
            if i.name in ("IADD3", "UIADD3", "LEA", "ULEA", "VIADD", "IADD"):
                pass
            expect("signs", negated, mask)


def disassemble(nvdisasm, cubin):
    """Section of each kernel → offset → instruction; and label → offset."""
    run = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True)
    kernels, section, labels, waiting, names = {}, None, {}, [], {}
    for line in run.stdout.splitlines():
        m = re.match(r"^\.text\.(\S+):", line)
        if m:
            section, labels, waiting = {}, {}, []
            kernels[m.group(1)] = (section, labels)
            continue
        m = re.match(r"^\s*(\S+):\s*$", line)
        if m and section is not None:
            waiting.append(m.group(1))
            continue
        m = re.match(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@(!?U?P[T\d])\s+)?(.*?)\s*;", line)
        if m and section is not None:
            offset = int(m.group(1), 16)
            for label in waiting:
                labels[label] = offset
            waiting = []
            section[offset] = Instruction(m.group(2), m.group(3))
    return kernels


def text_sections(cubin):
    """Name of each kernel → where its code lies in the file."""
    shoff, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, shoff + k * size) for k in range(count)]
    strings = sections[names][4]
    found = {}
    for name, _, _, _, offset, _ in sections:
        text = cubin[strings + name:cubin.index(b"\0", strings + name)].decode()
        if text.startswith(".text."):
            found[text[6:]] = offset
    return found


def one_instruction(nvdisasm, sm, word, folder):
    path = os.path.join(folder, "word")
    with open(path, "wb") as f:
        f.write(word)
    run = subprocess.run([nvdisasm, "-b", "SM%d" % sm, path], capture_output=True, text=True)
    m = re.search(r"/\*0000\*/\s+(?:@(!?U?P[T\d])\s+)?(.*?)\s*;", run.stdout)
    return Instruction(m.group(1), m.group(2)) if m else None


def traces(dump, path, out):
    """Of each cubin in a file: its path, architecture, and kernel → offset → what we take."""
    found, kernel = [], None
    for line in subprocess.run([dump, path, out], capture_output=True, text=True,
                               check=True).stdout.splitlines():
        o = json.loads(line)
        if "cubin" in o:
            found.append((o["cubin"], o["sm"], {}))
        elif "kernel" in o:
            kernel = found[-1][2].setdefault(o["kernel"], {})
            m = re.search(r"machine code offset (0x[0-9a-f]+)", o["why_not"])
            refused = int(m.group(1), 16) if m else None
        else:
            if o["offset"] != refused:
                kernel[o["offset"]] = o
    return found


def mutate(nvdisasm, dump, files, wanted):
    seed = 20240717
    print("seed %d" % seed)
    chance = random.Random(seed)
    checkers = {}
    with tempfile.TemporaryDirectory() as folder:
        pool = collections.defaultdict(list)
        for index, path in enumerate(files):
            for cubin, sm, kernels in traces(dump, path, os.path.join(folder, str(index))):
                pool[sm].append((cubin, kernels))
        for sm, cubins in sorted(pool.items()):
            checker = checkers.setdefault(sm, Checker())
            while checker.counts["mutants"] < wanted:
                cubin, kernels = chance.choice(cubins)
                content = bytearray(open(cubin, "rb").read())
                places = text_sections(bytes(content))
                chosen = {}
                for name, taken in kernels.items():
                    straight = [o for o in taken.values() if o["name"] not in CONTROL]
                    if not straight:
                        continue
                    offset = chance.choice(straight)["offset"]
                    bit = chance.randrange(105)
                    at = places[name] + offset
                    content[at + bit // 8] ^= 1 << (bit % 8)
                    chosen[name] = (offset, bit, bytes(content[at:at + 16]))
                changed = os.path.join(folder, "changed")
                with open(changed, "wb") as f:
                    f.write(content)
                ours = traces(dump, changed, os.path.join(folder, "again"))[0][2]
                for name, (offset, bit, word) in chosen.items():
                    if checker.counts["mutants"] >= wanted:
                        break
                    checker.counts["mutants"] += 1
                    theirs = one_instruction(nvdisasm, sm, word, folder)
                    mine = ours.get(name, {}).get(offset)
                    if theirs is None:
                        checker.counts["illegal"] += 1
                    elif mine is None or not mine["name"]:
                        checker.counts["refused"] += 1
                    else:
                        place = "sm_%d %s+0x%x, bit %d" % (sm, name, offset, bit)
                        checker.check(mine, theirs, place, {})
    print("| Architecture | Mutants | no instruction | refused by us | compared | different |\n"
          "|---|---|---|---|---|---|")
    for sm, c in sorted(checkers.items()):
        n = c.counts
        print("| sm_%d | %d | %d | %d | %d | %d |" %
              (sm, n["mutants"], n["illegal"], n["refused"], n["instructions"],
               n["instructions that differ"]))
    for sm, c in sorted(checkers.items()):
        for d in c.differences:
            print(d)
    return 1 if any(c.differences for c in checkers.values()) else 0


CONTROL = set("BRA CALL RET EXIT BRX BRXU BSSY BSYNC BREAK BPT".split())


def main():
    mutants = None
    if len(sys.argv) > 2 and sys.argv[1] == "--mutate":
        mutants = int(sys.argv[2])
        del sys.argv[1:3]
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    nvdisasm = os.environ.get("GPURECOVER_NVDISASM") or shutil.which("nvdisasm")
    if not nvdisasm or not os.access(nvdisasm, os.X_OK):
        print("skipped: no nvdisasm (in PATH, or named by GPURECOVER_NVDISASM)")
        return 77
    version = subprocess.run([nvdisasm, "--version"], capture_output=True, text=True, check=True)
    print(re.search(r"release .*", version.stdout).group(0))
    if mutants is not None:
        return mutate(nvdisasm, sys.argv[1], sys.argv[2:], mutants)
    checkers, refused = {}, collections.defaultdict(list)
    kernels_of = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for index, path in enumerate(sys.argv[2:]):
            dump = subprocess.run([sys.argv[1], path, os.path.join(folder, str(index))],
                                  capture_output=True, text=True, check=True).stdout
            listing, sm, kernel = None, None, None
            for line in dump.splitlines():
                o = json.loads(line)
                if "cubin" in o:
                    listing, sm = disassemble(nvdisasm, o["cubin"]), o["sm"]
                    checker = checkers.setdefault(sm, Checker())
                elif "kernel" in o:
                    kernel = o["kernel"]
                    kernels_of[sm] += 1
                    if o["why_not"]:
                        refused[sm].append(kernel + ": " + o["why_not"])
                else:
                    section, labels = listing[kernel]
                    place = "sm_%d %s+0x%x" % (sm, kernel, o["offset"])
                    if o["offset"] not in section:
                        checker.differ("not there", place, o, "")
                        continue
                    checker.check(o, section[o["offset"]], place, labels)
    print("| Architecture | Kernels | refused | Instructions | followed | accesses | targets of "
          "branches | by results | different |\n|---|---|---|---|---|---|---|---|---|")
    bad = False
    for sm, c in sorted(checkers.items()):
        n = c.counts
        print("| sm_%d | %d | %d | %d | %d | %d | %d | %d | %d |" %
              (sm, kernels_of[sm], len(refused[sm]), n["instructions"], n["followed"], n["memory"],
               n["targets"], n["by results"], n["different"]))
        bad = bad or n["different"] != 0 or n["instructions"] == 0
    for sm, c in sorted(checkers.items()):
        for d in c.differences:
            print(d)
        for kind, count in c.kinds.most_common():
            print("sm_%d: %d times: %s" % (sm, count, kind))
    for sm, list_ in sorted(refused.items()):
        for r in list_:
            print("sm_%d refused: %s" % (sm, r))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
