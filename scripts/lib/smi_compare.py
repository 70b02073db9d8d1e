#!/usr/bin/env python3
"""Compares our nvidia-smi with NVIDIA's, both reading the same library: python3 smi_compare.py OURS THEIRS [--native].

Every property of --query-gpu, -L, the processes, dmon, pmon, topo, the table, -q and its XML. What moves (power, clocks, times) is compared
by its shape. A value that only ours tells is no failure; one that only theirs tells is, except with --native, on a bare driver, whose
board tells more than a virtual GPU. Properties that only one version of the programs knows are named. Status 1: something differs.
"""
import re
import subprocess
import sys
import xml.etree.ElementTree as tree

LIVE = re.compile(r"timestamp|^(power\.draw|temperature|utilization|clocks\.current|clocks_event_reasons\.|pstate|fan\.speed|memory\.(used|free)|pcie\.link)")
# Names of older versions, or of newer ones: the program of Debian is not of the host's release.
RENAMED = {
    "Module ID": "Module Id", "Gpu": "GPU", "GPU Shutdown Temp": "GPU Shutdown T.Limit Temp", "GPU Slowdown Temp": "GPU Slowdown T.Limit Temp",
    "GPU Max Operating Temp": "GPU Max Operating T.Limit Temp", "Memory Max Operating Temp": "Memory Max Operating T.Limit Temp",
}
DROPPED = {"GPU Reset Status", "Reset Required", "Drain and Reset Recommended", "Voltage", "reset_status.reset_required",
           "reset_status.drain_and_reset_recommended"}
NATIVE = "--native" in sys.argv
OURS, THEIRS = [a for a in sys.argv[1:] if not a.startswith("--")]
failures = []
rows = []


def run(program, *args):
    p = subprocess.run([program, *args], capture_output=True, text=True, errors="replace", timeout=300, stdin=subprocess.DEVNULL)
    return p.returncode, p.stdout


def both(*args):
    (a, ours), (b, theirs) = run(OURS, *args), run(THEIRS, *args)
    if a or b or not ours or not theirs:
        fail(" ".join(args), f"status {a}", f"status {b}")
    return ours, theirs


def fail(what, ours, theirs):
    failures.append(what)
    rows.append(("DIFFERS", what, ours, theirs))


def absent(v):
    return re.sub(r"[\[\]]", "", v).split(" ")[-1] in ("N/A", "", "-")


def judge(what, ours, theirs, live=False):
    """One value of each program."""
    shape = (lambda v: re.sub(r"[0-9A-F]*[0-9][0-9A-F.]*|Not Active|Active", "#", v)) if live else (lambda v: v)
    if shape(ours) == shape(theirs):
        rows.append(("same", what, ours, theirs))
    elif absent(theirs) and not absent(ours):
        rows.append(("ours tells more", what, ours, theirs))
    elif NATIVE and absent(ours) and not absent(theirs):
        rows.append(("theirs tells more", what, ours, theirs))
    elif absent(ours) and absent(theirs):
        rows.append(("same", what, ours, theirs))
    else:
        fail(what, ours, theirs)


def properties(program, query):
    return re.findall(r'^"([A-Za-z][^" :]*)"', run(program, f"--help-{query}")[1], re.M)


def names_of_both(query):
    ours, theirs = properties(OURS, query), properties(THEIRS, query)
    for n in theirs:
        if n not in ours and n not in DROPPED:
            fail(f"--{query}={n}", "not known", "known")
    new = [n for n in ours if n not in theirs]
    if new:
        rows.append(("newer", f"--{query}: {len(new)} properties", ", ".join(new[:3]) + ", ...", "not known"))
    return [n for n in ours if n in theirs]


def query(what, ids=()):
    names = names_of_both(what)
    ours, theirs = both(f"--{what}={','.join(names)}", "--format=csv", *ids)
    o, t = [[line.split(", ") for line in x.splitlines()] for x in (ours, theirs)]
    if len(o) != len(t) or (o and o[0] != t[0]):
        fail(f"--{what}: header or lines", str(len(o)), str(len(t)))
        return
    for a, b in zip(o[1:], t[1:]):
        for n, x, y in zip(names, a, b):
            if n == "display_mode" or (y in "01" and n in ("remapped_rows.pending", "remapped_rows.failure")):
                continue  # told otherwise by older versions
            judge(n, x, y, LIVE.search(n))


def text(what, *args, mask=r"[0-9]+", skip=None):
    """Lines that must be equal once numbers are masked."""
    def lines(s):
        keep = [x for x in s.splitlines() if not (skip and re.search(skip, x))]
        lacking = r"(?<= )-(?= |$)" if NATIVE else r"(?!)"
        return [re.sub(r" +", " ", re.sub(lacking, "#", re.sub(mask, "#", x))).strip() for x in keep]
    ours, theirs = (lines(x) for x in both(*args))
    if ours == theirs:
        rows.append(("same", what, f"{len(ours)} lines", f"{len(theirs)} lines"))
        return
    for a, b in zip(ours + [""] * len(theirs), theirs + [""] * len(ours)):
        if a != b:
            fail(what, a, b)
            return


def sections(gpu):
    """-q of one GPU: names, and what is told under them, in order."""
    def parse(s):
        found = []
        for line in s.splitlines():
            m = re.match(r"^( +)(\S.*?) *(?:: (.*))?$", line)
            if m:
                name = m.group(2).strip()
                found.append((RENAMED.get(name, name), None if name in RENAMED else m.group(3)))
        return found
    ours, theirs = (parse(x) for x in both("-q", "-i", gpu))
    have = [n for n, _ in ours]
    at = 0
    for name, value in theirs:
        if name in DROPPED:
            continue
        if name not in have[at:]:
            if name not in have and NATIVE:
                rows.append(("theirs tells more", f"-q: {name}", "not shown", str(value)))
            elif name not in have:
                fail(f"-q: {name}", "not shown", str(value))
            continue  # in another order in another version
        at = have.index(name, at)
        mine = ours[at][1]
        if name == "Display Mode" or (value is None) != (mine is None):
            pass
        elif value is not None:
            judge(f"-q: {name}", mine, value, live=True)
        at += 1
    rows.append(("same", f"-q -i {gpu}: sections", f"{len(have)} names", f"{len(theirs)} names"))


def elements():
    """-q -x: every element of theirs is one of ours."""
    def paths(s):
        found = set()

        def walk(node, path):
            found.add(path)
            for child in node:
                walk(child, f"{path}/{child.tag}")
        walk(tree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", s)), "")
        return found
    ours, theirs = (paths(x) for x in both("-q", "-x"))
    old = re.compile("/gpu/(gpu_reset_status|voltage|gpu_module_id|temperature/gpu_temp_.*threshold)|supported_clocks/|row_remapper_histogram/")
    lacking = sorted(p for p in theirs - ours if not old.search(p))
    for p in lacking:
        if NATIVE:
            rows.append(("theirs tells more", f"-x: {p}", "", ""))
        else:
            fail(f"-x: {p}", "no such element", "")
    rows.append(("same", "-q -x: elements", str(len(ours)), str(len(theirs))))


query("query-gpu")
query("query-compute-apps")
query("query-remapped-rows")
text("-L", "-L", mask=r"\bnothing\b")
text("table", mask=r"[0-9.]+", skip=r"NVIDIA-SMI|^[|+][-=]|GPU +GI|^ *$|^[A-Z][a-z]{2} [A-Z]|^\| +[0-9]+ +N/A +N/A")
for s in "pucmet":
    text(f"dmon -s {s}", "dmon", "-c", "1", "-s", s)
text("dmon -o DT", "dmon", "-c", "1", "-o", "DT")
text("dmon --format csv", "dmon", "-c", "1", "--format", "csv")
text("pmon -s m", "pmon", "-c", "1", "-s", "m")
text("pmon header", "pmon", "-c", "1", skip="^ ")
text("topo -m", "topo", "-m", mask=r"\bnothing\b")
for i in range(len(run(THEIRS, "-L")[1].splitlines())):
    sections(str(i))
elements()

for kind, what, ours, theirs in rows:
    if kind != "same":
        print(f"{kind:18} {what:58.58} {ours:30.30} {theirs:30.30}".rstrip())
count = {k: sum(r[0] == k for r in rows) for k in ("same", "ours tells more", "theirs tells more", "DIFFERS")}
print("compared: " + ", ".join(f"{n} {k}" for k, n in count.items()))
sys.exit(bool(failures))
