"""Programs that take all there is of something, by name."""

# Each is stopped after a moment. None may take more than its sandbox.
EXHAUSTION = {
    "a fork bomb": """
import os
while True:
 try: os.fork()
 except OSError: pass
""",
    "a fork bomb of shells": """
import os
os.execvp('sh', ['sh', '-c', 'f() { f | f & }; f; wait'])
""",
    "threads": """
import threading, time
while True:
 try: threading.Thread(target=time.sleep, args=(99,)).start()
 except RuntimeError: break
time.sleep(99)
""",
    "memory": """
kept = []
while True: kept.append(bytes(range(256)) * 4096)
""",
    "memory of many": """
import os
for _ in range(5): os.fork()
kept = []
while True: kept.append(bytes(range(256)) * 4096)
""",
    "memory that no process maps": """
import os
fds = []
while True:
 fd = os.memfd_create('x'); os.write(fd, bytes(1 << 20)); fds.append(fd)
""",
    "the disk": """
import itertools
for n in itertools.count():
 open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))
""",
    "inodes": """
import itertools
for n in itertools.count(): open(f'/tmp/{n}', 'w')
""",
    "a huge file": """
f = open('/tmp/x', 'wb')
while True: f.write(bytes(1 << 20))
""",
    "a file of holes": """
f = open('/tmp/x', 'wb')
f.seek(1 << 50)
f.write(b'x')
""",
    "floods of output": """
import os
while True: os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)
""",
    "deep folders": """
import os
for _ in range(9000):
 os.mkdir('d'); os.chdir('d')
""",
    "names as long as may be": """
import os
for n in range(3000): open('/tmp/' + str(n).rjust(255, 'x'), 'w')
""",
    "links in a ring": """
import os
for n in range(2000): os.symlink(f'/app/{(n + 1) % 2000}', f'/app/{n}')
""",
    "System V segments": """
import ctypes
libc = ctypes.CDLL(None)
for n in range(5000):
 if libc.shmget(0, 1 << 20, 0o1600) < 0: break
""",
    "descriptors": """
import os, time
while True:
 try: os.pipe()
 except OSError: break
""",
    "processes that go on": """
import os, time
if os.fork() == 0:
 os.setsid()
 if os.fork() == 0:
  time.sleep(1000)
""",
    "processes that refuse to end": """
import os, signal, time
for s in range(1, 65):
 try: signal.signal(s, signal.SIG_IGN)
 except (OSError, ValueError): pass
os.fork()
time.sleep(1000)
""",
    "a stopped process": """
import os, signal
if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP)
""",
    "waiting for ever": """
import os
os.mkfifo('/tmp/f'); open('/tmp/f')
""",
}
