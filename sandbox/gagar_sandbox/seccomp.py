"""The filter that keeps the rarer parts of the kernel away from code in a sandbox, as a classic BPF program."""

import errno
import platform
import struct
from collections.abc import Iterator

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Numbers on x86_64 and aarch64; None where there is no such call. From Linux' arch/x86/entry/syscalls/syscall_64.tbl and
# include/uapi/asm-generic/unistd.h.
DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
}
CLONE, CLONE3, SOCKET, IOCTL = (56, 220), (435, 435), (41, 198), (16, 29)
# Calls whose first argument is a process that they change: prlimit64, and the scheduler's setaffinity, setscheduler,
# setparam and setattr. They must not name PID 1.
CHANGE_A_PROCESS = ((302, 261), (203, 122), (144, 119), (142, 118), (314, 274))
NEW_NAMESPACES = 0x7E020080
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
FAMILIES = (1, 2, 10, 16)  # UNIX, INET, INET6, NETLINK

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, MACHINE, ARGUMENTS = 0, 4, 16
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
NEWEST = 462  # mseal, of Linux 6.10; numbers are the same on both from 424 on, and those of x32 lie far above

Instruction = tuple[int, int, int, int]


def program() -> bytes | None:
    """For this machine's processor; None where its system call numbers are not known here."""
    machine = platform.machine()
    if machine not in MACHINES:
        return None
    instructions = _program(MACHINES[machine], column=list(MACHINES).index(machine))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _program(machine: int, column: int) -> Iterator[Instruction]:
    yield from [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, machine), _return(KILL)]
    yield from [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, NEWEST + 1), _refuse(errno.ENOSYS)]  # what was not known to the list
    for numbers in DENIED.values():
        if (number := numbers[column]) is not None:
            yield from [(EQUAL, 0, 1, number), _refuse(errno.EPERM)]
    # Its flags lie in memory, where no filter can look; the C library falls back to clone.
    yield from [(EQUAL, 0, 1, CLONE3[column]), _refuse(errno.ENOSYS)]
    yield from _where(CLONE[column], 0, [(ANY_BIT, 0, 1, NEW_NAMESPACES), _refuse(errno.EPERM)])
    for name in (TIOCSTI, TIOCLINUX):
        yield from _where(IOCTL[column], 1, [(EQUAL, 0, 1, name), _refuse(errno.EPERM)])
    known = [(EQUAL, len(FAMILIES) - at, 0, family) for at, family in enumerate(FAMILIES)]
    yield from _where(SOCKET[column], 0, [*known, _refuse(errno.EAFNOSUPPORT)])
    for numbers in CHANGE_A_PROCESS:
        yield from _where(numbers[column], 0, [(EQUAL, 0, 1, 1), _refuse(errno.EPERM)])
    yield _return(ALLOW)


def _where(number: int, argument: int, tests: list[Instruction]) -> Iterator[Instruction]:
    """Run the tests on the low half of one argument where the call is `number`; then go on with the call's number."""
    yield (EQUAL, 0, len(tests) + 2, number)
    yield (LOAD, 0, 0, ARGUMENTS + 8 * argument)
    yield from tests
    yield (LOAD, 0, 0, NUMBER)


def _refuse(code: int) -> Instruction:
    return _return(REFUSE | code)


def _return(value: int) -> Instruction:
    return (RETURN, 0, 0, value)
