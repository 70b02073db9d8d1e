"""Says one command to QEMU's monitor (a socket) and prints the answer: hmp.py SOCKET COMMAND. The status is 1 if it speaks of an error."""
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(60)
s.connect(sys.argv[1])
text = b""
def prompt():
    global text
    while not text.endswith(b"(qemu) "):
        some = s.recv(4096)
        if not some:
            sys.exit("QEMU has closed its monitor")
        text += some
prompt()
text = b""
s.sendall(sys.argv[2].encode() + b"\n")
prompt()
out = text.decode(errors="replace").split("\n", 1)[-1].replace("(qemu) ", "").strip()
if out:
    print(out)
sys.exit(1 if "rror" in out else 0)
