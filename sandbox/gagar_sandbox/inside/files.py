"""Reading and writing plain files on behalf of the host."""

import errno
import os
import stat


def read(path: str, max_bytes: int) -> bytes:
    descriptor = _open_plain(path, os.O_RDONLY)
    try:
        if os.fstat(descriptor).st_size > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return data


def write(path: str, data: bytes) -> bytes:
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.lexists(folder):
        os.makedirs(folder)
    descriptor = _open_plain(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.truncate(descriptor, 0)
        with open(descriptor, "wb", closefd=False, buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) or 0 :]
    finally:
        os.close(descriptor)
    return b""


def _open_plain(path: str, flags: int) -> int:
    """Open a regular file without ever blocking: no FIFO, device or /proc entry, which links planted by a command could name."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        reason = errno.EISDIR
    elif not stat.S_ISREG(status.st_mode) or status.st_dev == os.stat("/proc").st_dev:
        reason = errno.EINVAL
    else:
        return descriptor
    os.close(descriptor)
    raise OSError(reason, "Not a plain file", path)
