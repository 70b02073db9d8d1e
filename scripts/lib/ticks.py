"""Reads what guest/tests/life/ticks.c writes to a fifo: ticks.py FIFO FILE. FILE holds the longest time in ms between two lines, by this
machine's clock and by the guest's; removing FILE begins anew."""
import os, sys, time
fifo, out = sys.argv[1:]
host = guest = 0
last = 0.0
def write():
    with open(out + ".new", "w") as f:
        f.write("%d %d\n" % (host * 1000, guest / 1000))
    os.rename(out + ".new", out)
with open(os.open(fifo, os.O_RDWR), errors="replace") as lines:
    for line in lines:
        now = time.monotonic()
        if not os.path.exists(out):
            host, guest, last = 0, 0, now
            write()
            continue
        try:
            gap = int(line)
        except ValueError: # half a line, from before
            continue
        if last and (now - last > host or gap > guest):
            host, guest = max(host, now - last), max(guest, gap)
            write()
        last = now
