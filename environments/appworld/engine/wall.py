"""Isolate the process that agents' code runs in: the kernel confines it, even when the code breaks out of Python.

``environments.appworld.sandbox`` starts the worker and the evaluator under bubblewrap, which gives them file systems of
their own (programs, the package and one root, all read-only), no network and no view of other processes. Inside it
every episode is enclosed once more, so that episodes of one worker cannot reach each other or the worker either:

- user, process, mount, network, IPC and host name namespaces of its own, no capability, no way to gain one;
- one place to write, a file system in memory that ends with it; no ``/proc``;
- the system calls of ``_ALLOWED`` and no others: it starts no program and no process, opens no socket, traces nothing,
  mounts nothing, sets no clock. Any other call answers ENOSYS, as on a kernel that lacks it.

Linux only. Of the package nothing is imported here, so that ``main`` can test quickly whether all of it works.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import Any

SCRATCH = "/tmp"
NOBODY = 65534
_SCRATCH_MEGABYTES = 256

_NEW_NAMESPACES = 0x20000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000
"""CLONE_NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET of linux/sched.h."""
_CLONE_THREAD = 0x10000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC_PRIVATE = 1, 2, 4, 8, 0x44000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_SIGKILL = 9
_CAPABILITIES = 64  # more than there are: what does not exist answers EINVAL
_CAPABILITY_VERSION = 0x20080522

_ALLOWED = (
    # files below the read-only root and the scratch folder
    *("open", "openat", "close", "close_range", "read", "readv", "pread64", "write", "writev", "pwrite64", "lseek"),
    *("stat", "lstat", "fstat", "newfstatat", "statx", "statfs", "fstatfs", "access", "faccessat", "faccessat2"),
    *("getdents64", "getcwd", "chdir", "fchdir", "readlink", "readlinkat", "mkdir", "mkdirat", "rmdir", "unlink"),
    *("unlinkat", "rename", "renameat", "renameat2", "ftruncate", "truncate", "fallocate", "fsync", "fdatasync"),
    *("flock", "fcntl", "dup", "dup2", "dup3", "umask", "utimensat", "fchmod", "chmod", "fchmodat", "copy_file_range"),
    *("sendfile", "fadvise64", "symlink", "symlinkat", "pipe", "pipe2"),
    # connections that are open: the one to the project, and pairs within the process
    *("sendto", "recvfrom", "sendmsg", "recvmsg", "socketpair", "shutdown", "getsockopt", "setsockopt"),
    *("getsockname", "getpeername", "poll", "ppoll", "select", "pselect6", "eventfd2"),
    *("epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait"),
    # memory
    *("mmap", "munmap", "mprotect", "mremap", "madvise", "brk", "msync", "mincore", "mlock", "munlock"),
    # time, signals and threads of this process
    *("clock_gettime", "clock_getres", "gettimeofday", "time", "times", "nanosleep", "clock_nanosleep"),
    *("alarm", "setitimer", "getitimer", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending"),
    *("rt_sigsuspend", "rt_sigtimedwait", "sigaltstack", "restart_syscall", "pause", "kill", "tkill", "tgkill"),
    *("futex", "set_robust_list", "get_robust_list", "set_tid_address", "rseq", "membarrier", "sched_yield"),
    *("sched_getaffinity", "gettid", "exit", "exit_group", "wait4", "arch_prctl"),
    # identity of the process
    *("getpid", "getppid", "getpgrp", "getpgid", "getsid", "getuid", "geteuid", "getgid", "getegid", "getgroups"),
    *("getresuid", "getresgid", "getrlimit", "setrlimit", "prlimit64", "getrusage", "sysinfo", "uname", "getrandom"),
)
_DEVICE_REQUESTS = (0x5401, 0x5413, 0x5421, 0x541B, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONBIO, FIONREAD, FIONCLEX and FIOCLEX of asm-generic/ioctls.h: questions and flags."""


class Wall:
    """The isolation of a worker's or an evaluator's children; made once per parent. Raises OSError, ImportError."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        _become_nobody(self._libc)
        self._filter = _allowed_calls()

    def set_apart(self, connection: int) -> None:
        """Return in a new process, the first of its own namespaces.

        This process waits for it, and each ends with the other. ``connection`` is the file descriptor that only the
        new process keeps.
        """
        user, group = os.getuid(), os.getgid()
        self._call("unshare", _NEW_NAMESPACES)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text)
        child = os.fork()
        if child:
            os.close(connection)
            os.waitpid(child, 0)
            os._exit(0)

    def shut(self) -> None:
        """Restrict this process, in which ``set_apart`` returned, to the rights that the module's docstring lists."""
        self._call("mount", b"none", b"/", None, _MS_REC_PRIVATE, None)
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        self._call(
            "mount", b"tmpfs", SCRATCH.encode(), b"tmpfs", flags, f"size={_SCRATCH_MEGABYTES}m,mode=700".encode()
        )
        self._call("mount", b"tmpfs", b"/proc", b"tmpfs", flags | _MS_RDONLY, b"size=4k")
        os.chdir(SCRATCH)
        null = os.open("/dev/null", os.O_RDWR)
        for standard in (0, 1, 2):  # the log is a file outside: its size is not the code's to choose
            os.dup2(null, standard)
        os.close(null)
        for number in range(_CAPABILITIES):
            self._libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
        self._call("capset", header, (ctypes.c_uint32 * 6)())
        self._call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        self._call("prctl", _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        self._filter.load()

    def _call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - what C takes
        if getattr(self._libc, name)(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")


def _become_nobody(libc: ctypes.CDLL) -> None:
    """Change from root to nobody; bubblewrap left only the capabilities for that."""
    if os.getuid() != 0:
        return
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # or it could not write its children's uid_map


def _allowed_calls() -> Any:  # noqa: ANN401 - the package has no types here
    import pyseccomp  # type: ignore[import-not-found, unused-ignore]

    calls = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.ENOSYS))
    for name in _ALLOWED:
        if pyseccomp.resolve_syscall(pyseccomp.system_arch(), name) >= 0:  # else this architecture lacks it
            calls.add_rule(pyseccomp.ALLOW, name)
    thread = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD)
    calls.add_rule(pyseccomp.ALLOW, "clone", thread)
    for request in _DEVICE_REQUESTS:
        calls.add_rule(pyseccomp.ALLOW, "ioctl", pyseccomp.Arg(1, pyseccomp.EQ, request))
    return calls


def main() -> None:
    """Isolate a child and report success, or report in one line what is missing (exit status 1).

    The arguments are AppWorld roots that the process must be able to read.
    """
    try:
        wall = Wall()
        for root in sys.argv[1:]:
            os.listdir(os.path.join(root, "data", "tasks"))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            wall.set_apart(writing)
            wall.shut()
            os.write(writing, b"enclosed")
            os._exit(0)
        os.close(writing)
        said = os.read(reading, 100)
        os.waitpid(child, 0)
    except (OSError, ImportError, RuntimeError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    if said != b"enclosed":
        sys.exit("a child could not enclose itself")
    print("enclosed")


if __name__ == "__main__":
    main()
