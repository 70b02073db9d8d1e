"""Prints the answer to a GET of HTTP: get.py SOCKET|HOST:PORT PATH, where a SOCKET is a path. Waits 5 s at most. The status is 1 if there is none, 2 if it is an error's."""
import http.client, socket, sys

to, path = sys.argv[1:]
c = http.client.HTTPConnection("causeway" if "/" in to else to, timeout=5)
try:
    if "/" in to:
        c.sock = socket.socket(socket.AF_UNIX)
        c.sock.settimeout(5)
        c.sock.connect(to)
    c.request("GET", path)
    a = c.getresponse()
    sys.stdout.write(a.read().decode(errors="replace"))
except (OSError, http.client.HTTPException) as e:
    sys.exit(f"get.py {to} {path}: {e}")
sys.exit(0 if a.status < 400 else 2)
