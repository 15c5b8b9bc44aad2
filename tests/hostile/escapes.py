"""Programs that run inside a sandbox and try to get out, to get at others, or to bring the machine down."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Escape:
    """A program of Python's. It prints "got" and what, where it got what it wanted. HOST, in it, is a folder of the host with a
    file `secret` that holds `hunter2`; OTHER is the pid on the host of another sandbox's process."""

    name: str
    code: str


SYSCALL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    if libc.syscall(*words) >= 0: print("got", words)
"""

ESCAPES = [
    Escape(
        "mount a tmpfs",
        """
import ctypes
if ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0: print('got')
""",
    ),
    Escape(
        "make /usr writable",
        """
import ctypes
if ctypes.CDLL(None).mount(b'', b'/usr', None, 32, None) == 0: print('got')
""",
    ),
    Escape(
        "unmount what hides /proc",
        """
import ctypes
if ctypes.CDLL(None).umount2(b'/proc', 2) == 0: print('got')
""",
    ),
    Escape(
        "unmount the workdir",
        """
import ctypes
if ctypes.CDLL(None).umount2(b'/app', 2) == 0: print('got')
""",
    ),
    Escape(
        "pivot the root",
        """
import ctypes
if ctypes.CDLL(None).pivot_root(b'/tmp', b'/tmp') == 0: print('got')
""",
    ),
    Escape(
        "chroot",
        """
import os
os.chroot('/tmp'); print('got')
""",
    ),
    Escape(
        "the new calls that mount",
        SYSCALL
        + """
call(428, -100, b'/', 1)
call(430, b'tmpfs', 0)
call(429, -100, b'/', -100, b'/tmp', 0)
""",
    ),
    Escape(
        "a user namespace",
        """
import ctypes
if ctypes.CDLL(None).unshare(0x10000000) == 0: print('got')
""",
    ),
    Escape(
        "every namespace by clone",
        SYSCALL
        + """
for flag in (0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000): call(56, flag | 17, 0, 0, 0, 0)
""",
    ),
    Escape("clone3", SYSCALL + "call(435, ctypes.create_string_buffer((0x10000000).to_bytes(8, 'little') + bytes(80)), 88)"),
    Escape(
        "enter the namespaces of PID 1",
        """
import ctypes, os
for n in os.listdir('/proc/1/ns'):
 if ctypes.CDLL(None).setns(os.open('/proc/1/ns/' + n, 0), 0) == 0: print('got', n)
""",
    ),
    Escape(
        "trace PID 1",
        """
import ctypes
if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0: print('got')
""",
    ),
    Escape("read the memory of PID 1", "open('/proc/1/mem', 'rb').read(1); print('got')"),
    Escape("call by process_vm_readv", SYSCALL + "call(310, 1, 0, 0, 0, 0, 0)"),
    Escape(
        "the files that PID 1 has open",
        """
import os
for n in range(8):
 try: os.open(f'/proc/1/fd/{n}', os.O_WRONLY); print('got', n)
 except OSError: pass
""",
    ),
    Escape(
        "its root and working folder",
        """
import os
print('got', os.listdir('/proc/1/root'))
""",
    ),
    Escape("its environment", "print('got', open('/proc/1/environ').read() or 1)"),
    Escape("a descriptor of PID 1's", SYSCALL + "call(438, os.pidfd_open(1), 0, 0)"),
    Escape(
        "a device node",
        """
import os
os.mknod('/tmp/disk', 0o60600, os.makedev(254, 0)); print('got', open('/tmp/disk', 'rb').read(1))
""",
    ),
    Escape(
        "the host's memory by devices",
        """
for n in ('mem', 'kmem', 'port', 'kmsg', 'vda', 'sda', 'fuse', 'kvm', 'net/tun'):
 try: open('/dev/' + n, 'rb'); print('got', n)
 except OSError: pass
""",
    ),
    Escape(
        "/proc/kcore and its like",
        """
for n in ('kcore', 'kpageflags', 'sysrq-trigger', 'sys/kernel/core_pattern', 'sys/kernel/modprobe'):
 try: open('/proc/' + n, 'r+b'); print('got', n)
 except OSError: pass
""",
    ),
    Escape(
        "a setuid program",
        """
import os, shutil
shutil.copy('/usr/bin/id', '/tmp/id'); os.chmod('/tmp/id', 0o6755)
if b'uid=0' in __import__('subprocess').run(['/tmp/id'], capture_output=True).stdout: print('got')
""",
    ),
    Escape(
        "becoming root",
        """
import os
os.setuid(0); print('got')
""",
    ),
    Escape(
        "other groups",
        """
import os
os.setgroups([0]); print('got')
""",
    ),
    Escape(
        "su and sudo",
        """
import os, subprocess
for w in (['su', '-c', 'id'], ['sudo', '-n', 'id'], ['newuidmap', '1', '0', '0', '1']):
 try:
  if subprocess.run(w, capture_output=True, stdin=0, timeout=5).returncode == 0: print('got', w)
 except OSError: pass
""",
    ),
    Escape(
        "capabilities",
        SYSCALL
        + """
head = (ctypes.c_uint32 * 2)(0x20080522, 0)
if libc.capset(head, (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)) == 0: print('got')
""",
    ),
    Escape("io_uring", SYSCALL + "call(425, 8, ctypes.create_string_buffer(256))"),
    Escape(
        "keyrings",
        SYSCALL
        + """
call(248, b'user', b'x', b'y', 1, -3)
call(250, 0, -3, 1)
call(249, b'user', b'x', None, 0)
""",
    ),
    Escape(
        "bpf, perf, userfaultfd",
        SYSCALL
        + """
call(321, 0, ctypes.create_string_buffer(128), 128)
call(298, ctypes.create_string_buffer(128), 0, -1, -1, 0)
call(323, 0)
""",
    ),
    Escape(
        "kernel modules",
        SYSCALL
        + """
call(175, b'x', 1, b'')
call(313, 0, b'', 0)
call(246, 0, 0, 0, 0)
""",
    ),
    Escape(
        "the clock, the host's name, a reboot",
        SYSCALL
        + """
call(227, 0, ctypes.create_string_buffer(16))
call(169, 0xfee1dead, 672274793, 0)
if libc.sethostname(b'x', 1) == 0: print('got')
""",
    ),
    Escape("file handles", SYSCALL + "call(304, -100, ctypes.create_string_buffer(256), 0)"),
    Escape(
        "control groups",
        """
import os
for at in ('/sys/fs/cgroup', '/tmp/cgroup'):
 if os.path.exists(at + '/cgroup.procs'): print('got', at)
import ctypes
if ctypes.CDLL(None).mount(b'c', b'/tmp', b'cgroup2', 0, None) == 0: print('got')
""",
    ),
    Escape(
        "limits of its own",
        """
import resource
for k in (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
 try: resource.setrlimit(k, (1 << 30, 1 << 30)); print('got', k)
 except (OSError, ValueError): pass
""",
    ),
    Escape(
        "limits of PID 1",
        """
import resource
resource.prlimit(1, resource.RLIMIT_CPU, (1, 1)); print('got')
""",
    ),
    Escape(
        "typing into a terminal",
        """
import fcntl, os
fcntl.ioctl(os.openpty()[1], 0x5412, b'x'); print('got')
""",
    ),
    Escape(
        "new system programs",
        """
import os
for at in ('/usr/bin/x', '/etc/ld.so.preload', '/run/gagar/bin/x', '/lib/x', '/x'):
 try: open(at, 'w'); print('got', at)
 except OSError: pass
""",
    ),
    Escape(
        "replacing python3",
        """
import os
os.rename('/run/gagar/bin', '/run/gagar/old'); print('got')
""",
    ),
    Escape("the host's files by path", "print('got', open('HOST/secret').read())"),
    Escape(
        "by a link",
        """
import os
os.symlink('HOST/secret', '/app/link'); print('got', open('/app/link').read())
""",
    ),
    Escape("by dots", "print('got', open('/app/../../../../../../HOST/secret').read())"),
    Escape(
        "by the layers of its own files",
        """
import os
for at in ('/run/gagar/disks', '/run/gagar/image'):
 if os.path.exists(at) and os.listdir(at): print('got', at)
""",
    ),
    Escape(
        "the host's environment",
        """
import os
for p in os.listdir('/proc'):
 if p.isdigit():
  try: t = open(f'/proc/{p}/environ').read()
  except OSError: continue
  if 'hunter2' in t: print('got', p)
""",
    ),
    Escape(
        "home and keys",
        """
import os
for at in ('/root/.ssh', '/root/.bash_history', '/home', '/etc/shadow', '/work', '/var/run/docker.sock'):
 if os.path.exists(at): print('got', at)
""",
    ),
    Escape(
        "files of another sandbox",
        """
import os
for f, _, n in os.walk('/', followlinks=False):
 if f.startswith('/proc'): continue
 if 'flag-of-another' in n: print('got', f)
""",
    ),
    Escape(
        "processes of others",
        """
import os
for p in os.listdir('/proc'):
 if p.isdigit() and 'victim' in open(f'/proc/{p}/cmdline').read().split(chr(0))[0]: print('got', p)
""",
    ),
    Escape(
        "signals to the host",
        """
import os
for p in (OTHER, os.getppid()):
 for s in (0, 9):
  try: os.kill(p, s); print('got', p, s) if p == OTHER else None
  except OSError: pass
""",
    ),
    Escape(
        "signals to everything",
        """
import os, signal
signal.signal(15, signal.SIG_IGN)
os.kill(-1, 15)
""",
    ),
    Escape(
        "TCP",
        """
import socket
for a in (('1.1.1.1', 80), ('169.254.169.254', 80), ('10.0.0.1', 443), ('8.8.8.8', 53)):
 try: socket.create_connection(a, 1); print('got', a)
 except OSError: pass
""",
    ),
    Escape(
        "TCP to the host's loopback",
        """
import socket
socket.create_connection(('127.0.0.1', PORT), 1); print('got')
""",
    ),
    Escape(
        "UDP and names",
        """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b'x', ('8.8.8.8', 53)); print('got')
""",
    ),
    Escape(
        "IPv6",
        """
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.sendto(b'x', ('2606:4700:4700::1111', 53)); print('got')
""",
    ),
    Escape(
        "raw packets",
        """
import socket
for f, k in ((socket.AF_INET, socket.SOCK_RAW), (17, socket.SOCK_RAW)):
 try: socket.socket(f, k, 1); print('got', f)
 except OSError: pass
""",
    ),
    Escape(
        "families that nobody needs",
        """
import socket
for f in (17, 21, 29, 31, 38, 40, 44):
 try: socket.socket(f, socket.SOCK_DGRAM); print('got', f)
 except OSError: pass
""",
    ),
    Escape(
        "netlink",
        """
import socket, struct
s = socket.socket(16, 3, 0)
s.bind((0, 0))
s.send(struct.pack('=IHHIIBBHiII', 32, 16, 5, 1, 0, 0, 0, 0, 1, 0, 1))
if struct.unpack('=i', s.recv(4096)[16:20])[0] >= 0: print('got')
""",
    ),
    Escape(
        "abstract sockets of the host",
        """
import socket
s = socket.socket(socket.AF_UNIX)
s.connect(chr(0) + 'gagar-hostile'); print('got')
""",
    ),
    Escape(
        "paths of the host's sockets",
        """
import socket
s = socket.socket(socket.AF_UNIX)
s.connect('HOST/socket'); print('got')
""",
    ),
]
