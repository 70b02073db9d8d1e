"""Passes what comes to a Unix socket on to another, both ways, and stays until it is killed: relay.py FROM TO."""
import socket, sys, threading
def pass_on(a, b):
    try:
        while data := a.recv(1 << 16):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (a, b):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
a, _ = s.accept()
b = socket.socket(socket.AF_UNIX)
b.connect(sys.argv[2])
threading.Thread(target=pass_on, args=(b, a), daemon=True).start()
pass_on(a, b)
threading.Event().wait()
