#!/usr/bin/env python3
"""scripts/emulator.sh's moves: a VM goes to and fro between two QEMUs. Arguments: a folder, in which its initrd is, how many moves, how many processes
compute beside it, the CPU that is emulated, a kernel, and the kernel's words. Exits with 1 if memory was lost."""
import argparse
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time

ap = argparse.ArgumentParser()
ap.add_argument("folder")
ap.add_argument("moves", type=int)
ap.add_argument("load", type=int)
ap.add_argument("cpu")
ap.add_argument("kernel")
ap.add_argument("append")
o = ap.parse_args()
here, ram = o.folder, 512


class VM:
    def __init__(self, n, incoming):
        self.monitor, self.console = f"{here}/qmp{n}", f"{here}/console{n}"
        for p in (self.monitor, self.console):
            if os.path.exists(p):
                os.unlink(p)
        args = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", o.cpu, "-smp", "2", "-m", f"{ram}M", "-object", f"memory-backend-memfd,id=mem,size={ram}M,share=on",
                "-machine", "q35,memory-backend=mem", "-nodefaults", "-display", "none", "-serial", f"file:{self.console}", "-kernel", o.kernel, "-initrd", here + "/initrd",
                "-append", o.append, "-qmp", f"unix:{self.monitor},server=on,wait=off"]
        if incoming:
            args += ["-incoming", f"unix:{incoming}"]
        self.p = subprocess.Popen(args, stdin=subprocess.DEVNULL)
        end = time.time() + 60
        self.s = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self.s.connect(self.monitor)
                break
            except OSError:
                if time.time() > end or self.p.poll() is not None:
                    raise
                time.sleep(0.05)
        self.f = self.s.makefile("rw")
        self.f.readline()
        self.ask("qmp_capabilities")

    def ask(self, what, **args):
        self.f.write(json.dumps({"execute": what, "arguments": args}) + "\n")
        self.f.flush()
        while True:
            m = json.loads(self.f.readline())
            if "error" in m:
                raise RuntimeError(f"{what}: {m['error']}")
            if "return" in m:
                return m["return"]

    def said(self):
        with open(self.console, errors="replace") as f:
            return f.read()

    def until(self, text, seconds=300):
        end = time.time() + seconds
        while text not in self.said():
            if time.time() > end or self.p.poll() is not None:
                raise RuntimeError(f"the guest does not say {text!r}:\n{self.said()[-500:]}")
            time.sleep(0.1)

    def end(self):
        self.p.kill()
        self.p.wait()


def burn():
    while True:
        pass


here_now, losses, burners = VM(0, None), 0, []
try:
    here_now.until("at 0 20")
    for _ in range(o.load):
        b = multiprocessing.Process(target=burn, daemon=True)
        b.start()
        burners.append(b)
    for n in range(1, o.moves + 1):
        link = f"{here}/link"
        if os.path.exists(link):
            os.unlink(link)
        there = VM(n, link)
        here_now.ask("migrate-set-parameters", **{"max-bandwidth": 10 << 30, "downtime-limit": 300})
        here_now.ask("migrate", uri=f"unix:{link}")
        while True:
            m = here_now.ask("query-migrate")
            if m["status"] in ("completed", "failed", "cancelled"):
                break
            time.sleep(0.05)
        if m["status"] != "completed":
            raise RuntimeError(m)
        here_now.end()
        os.unlink(here_now.console), os.unlink(here_now.monitor)
        here_now = there
        here_now.until("at 0 ")  # some rounds of the quick process: every page was looked at
        torn = [l for l in here_now.said().splitlines() if l.startswith("torn")]
        losses += len(torn)
        print(f"move {n}: {m['ram'].get('dirty-sync-count')} syncs, {m.get('total-time')} ms, downtime {m.get('downtime')} ms; lost so far: {losses}", *torn, sep="\n  ", flush=True)
finally:
    here_now.end()
    for b in burners:
        b.terminate()
sys.exit(losses != 0)
