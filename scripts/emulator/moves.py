#!/usr/bin/env python3
"""scripts/emulator.sh's moves: a VM is sent to a file, live, again and again. Arguments: a folder, in which its initrd is, how many moves, how many processes compute beside it, the CPU
that is emulated, a kernel, and the kernel's words. Exits with 1 if memory was lost."""
import argparse
import json
import mmap
import multiprocessing
import os
import socket
import struct
import subprocess
import sys
import time

ap = argparse.ArgumentParser()
ap.add_argument("--wide", action="store_true")
ap.add_argument("folder")
ap.add_argument("moves", type=int)
ap.add_argument("load", type=int)
ap.add_argument("cpu")
ap.add_argument("kernel")
ap.add_argument("append")
o = ap.parse_args()
PAGE, RAM = 4096, 96 << 20


class VM:
    def __init__(self):
        self.console = o.folder + "/console"
        monitor = o.folder + "/monitor"
        trace = ["-trace", "enable=memory_notdirty_set_dirty", "-D", "/dev/null"] if o.wide else []
        self.p = subprocess.Popen(
            ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", o.cpu, "-smp", "2", "-m", f"{RAM >> 20}M", "-object", f"memory-backend-memfd,id=mem,size={RAM},share=on",
             "-machine", "q35,memory-backend=mem", "-nodefaults", "-display", "none", "-serial", f"file:{self.console}", "-kernel", o.kernel, "-initrd", o.folder + "/initrd",
             "-append", o.append, "-qmp", f"unix:{monitor},server=on,wait=off", *trace], stdin=subprocess.DEVNULL)
        s = socket.socket(socket.AF_UNIX)
        self.until(lambda: os.path.exists(monitor) and s.connect_ex(monitor) == 0, "its monitor does not answer")
        self.f = s.makefile("rw")
        self.f.readline()
        self.ask("qmp_capabilities")

    def until(self, what, else_, seconds=300):
        end = time.time() + seconds
        while not what():
            if time.time() > end or self.p.poll() is not None:
                raise RuntimeError(f"QEMU: {else_}")
            time.sleep(0.05)

    def ask(self, what, **args):
        self.f.write(json.dumps({"execute": what, "arguments": args}) + "\n")
        self.f.flush()
        while True:
            m = json.loads(self.f.readline())
            if "error" in m:
                raise RuntimeError(f"{what}: {m['error']}")
            if "return" in m:
                return m["return"]

    def works(self):
        with open(self.console, errors="replace") as f:
            return "at work" in f.read()

    def memory(self):
        """the guest's memory, as QEMU has it."""
        for line in open(f"/proc/{self.p.pid}/maps"):
            where = line.split()[0]
            low, high = (int(x, 16) for x in where.split("-"))
            if "memory-backend-memfd" in line and high - low == RAM:
                with open(f"/proc/{self.p.pid}/map_files/{where}", "rb") as f:
                    return mmap.mmap(f.fileno(), RAM, prot=mmap.PROT_READ)
        raise RuntimeError("QEMU has no such memory")

    def send(self, path):
        """sends the VM, which stands then."""
        self.ask("migrate", uri=f"file:{path}")
        while True:
            m = self.ask("query-migrate")
            if m["status"] == "completed":
                return m
            if m["status"] in ("failed", "cancelled"):
                raise RuntimeError(m)
            time.sleep(0.02)


class Sent:
    """The memory in a file of a migration with the capability mapped-ram (QEMU's docs/devel/migration/mapped-ram.rst): behind the block's name and size four numbers, of which the
    last two say where a bitmap of the pages is, and where pages are. One that the bitmap has not is of zeroes."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        name = b"\x03mem" + struct.pack(">Q", RAM)
        at = self.m.find(name, 0, 1 << 20)
        version, page, self.bits, self.pages = struct.unpack_from(">IQQQ", self.m, at + len(name))
        if at < 0 or version != 1 or page != PAGE:
            raise RuntimeError("the file is no migration with mapped-ram")

    def page(self, i):
        if self.m[self.bits + i // 8] >> i % 8 & 1 == 0:
            return bytes(PAGE)
        return self.m[self.pages + i * PAGE:self.pages + (i + 1) * PAGE]


def differing(memory, sent):
    """says of each page that was not sent as it is which words differ."""
    for i in range(RAM // PAGE):
        has, got = memory[i * PAGE:(i + 1) * PAGE], sent.page(i)
        if has != got:
            words = [w for w in range(0, PAGE, 4) if has[w:w + 4] != got[w:w + 4]]
            first = words[0]
            yield f"page {i:#x}: {len(words)} words from {first // 4} to {words[-1] // 4}; sent {got[first:first + 4][::-1].hex()}, is {has[first:first + 4][::-1].hex()}"


def burn():
    while True:
        pass


vm, losses, burners = VM(), 0, []
file = (("/dev/shm" if os.path.isdir("/dev/shm") else o.folder) + f"/causeway-emulator.{os.getpid()}")
try:
    vm.until(vm.works, "its guest does not work")
    memory = vm.memory()
    vm.ask("migrate-set-capabilities", capabilities=[{"capability": "mapped-ram", "state": True}])
    vm.ask("migrate-set-parameters", **{"max-bandwidth": 10 << 30, "downtime-limit": 20})
    for _ in range(o.load):
        b = multiprocessing.Process(target=burn, daemon=True)
        b.start()
        burners.append(b)
    for n in range(1, o.moves + 1):
        m = vm.send(file)
        lost = list(differing(memory, Sent(file)))
        os.unlink(file)
        losses += len(lost)
        print(f"move {n}: {m['ram']['dirty-sync-count']} syncs, {m['total-time']} ms; pages lost so far: {losses}", *lost, sep="\n  ", flush=True)
        vm.ask("cont")
        time.sleep(0.1)
finally:
    vm.p.kill()
    vm.p.wait()
    for b in burners:
        b.terminate()
    if os.path.exists(file):
        os.unlink(file)
sys.exit(losses != 0)
