"""Reading and writing plain files on behalf of the host."""

import errno
import os
import stat

PATH_MAX = 4096


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
    if len(os.fsencode(path)) >= PATH_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
    _make_folders(os.path.dirname(os.path.abspath(path)))
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


def _make_folders(path: str) -> None:
    """Not by os.makedirs, which calls itself for each: a path can have more of them than there is stack."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.mkdir(folder)


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
