"""Passes what comes to a Unix socket on to another, both ways, until it is killed: relay.py FROM TO."""
import os, socket, sys, threading
def pass_on(a, b):
    try:
        while data := a.recv(1 << 16):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        os._exit(1)
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
a, _ = s.accept()
b = socket.socket(socket.AF_UNIX)
b.connect(sys.argv[2])
threading.Thread(target=pass_on, args=(b, a)).start()
pass_on(a, b)
