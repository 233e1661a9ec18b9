"""A process of another user that listens where a daemon would, and writes down all that it is sent.

Arguments: directory, socket's name, kind (stream or seqpacket), uid, file to record in, and ``own`` or
``sticky``: whether the directory is its own or one in which it may create files. It prints a line once it listens.
"""

from __future__ import annotations

import os
import socket
import sys

directory, name, kind, uid, record, place = sys.argv[1:]
if place == "own":
    os.mkdir(directory, 0o755)
    os.chown(directory, int(uid), int(uid))
out = os.open(record, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
os.setgroups([])
os.setresgid(int(uid), int(uid), int(uid))
os.setresuid(int(uid), int(uid), int(uid))
sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if kind == "stream" else socket.SOCK_SEQPACKET)
os.umask(0)
sock.bind(os.path.join(directory, name))
sock.listen(8)
print('"listening"', flush=True)
while True:
    peer, _ = sock.accept()
    os.write(out, b"connected;")
    peer.settimeout(60)  # who waits for an answer is hung up on once it has sent something, however late
    try:
        while data := peer.recv(65536):
            os.write(out, data)
            peer.settimeout(0.1)
    except TimeoutError:
        pass
    peer.close()
