"""Ways in which an agent's code might reach an answer or harm the worker; what succeeds prints ESCAPED.

``ATTEMPTS`` meet every fence: the code filter, the namespace, the calls' arguments, the wall. ``lost_python_attempts``
assume that Python is lost: they run as they are (``lost_worker``), and only the kernel is left to hold them.

In both ``{answer}`` stands for the path of a file that holds an answer, ``{full}`` and ``{blind}`` for the two roots,
``{outside}`` for a file that must not come to be, ``{secret}`` for one that must not be read, ``{pid}`` for a process
that must not be touched, ``{port}``, ``{socket}`` and ``{abstract}`` for servers that nobody may reach, ``{other}`` for
the number of another world's process, ``{repository}`` for the project's folder.
"""

from __future__ import annotations

ESCAPED = "ESC" + "APED"  # in two parts, so that a traceback that quotes a probe's text is no success
_SHOUT = 'print("ESC" + "APED", {})'


def _shout(value: str) -> str:
    return _SHOUT.replace("{}", value)


# Three allowed names that give ``getattr``, and with it Python's own modules: the filter cannot know them all.
_GETATTR = """
import numbers, copy, json
R = numbers.ABCMeta('R', (), {'__reduce_ex__': lambda self, p: ((lambda: object), (), {'a': 1})})
try:
    copy.copy(R())
except AttributeError as e:
    ga = e.obj['__getattribute__']
loaded = ga(ga(json.dumps, '__globals__')['__builtins__']['__import__']('sys'), 'modules')
system, file = ga(loaded['posix'], '__dict__'), ga(loaded['_io'], '__dict__')['FileIO']
"""
_AFTER_GETATTR = {
    "answer": _shout("file('{answer}').read()"),
    "secret": _shout("file('{secret}').read()"),
    "write": _shout("file('{outside}', 'w').write(b'x')"),
    "program": _shout("system['posix_spawn']('/bin/true', ['true'], {})"),
    "signal": _shout("system['kill']({pid}, 9)"),
    "attach": "c = loaded['sqlite3'].connect(':memory:')\nc.execute(\"ATTACH '{outside}' AS o\")\n"
    "c.execute('create table o.t (x)')\n" + _shout(""),
    "vacuum": "c = loaded['sqlite3'].connect(':memory:')\nc.execute(\"VACUUM INTO '{blind}/data/x.db'\")\n"
    + _shout(""),
    "clock": "t = loaded['time']\nga(t, '__dict__')['clock_settime'](0, 0)\n" + _shout(""),
}

ATTEMPTS: dict[str, str] = {
    "pathlib": "import pathlib\n" + _shout("pathlib.Path('{answer}').read_text()"),
    "open": _shout("open('{answer}').read()"),
    "builtins_open": _shout("builtins.open('{answer}').read()"),
    "importlib": "import importlib\nimportlib.import_module('os')\n" + _shout(""),
    "dunder_import": "__import__('os').listdir('/')\n" + _shout(""),
    "task_load": "from appworld.task import Task\n" + _shout("Task.load('made02_1').ground_truth.answer"),
    "ground_truth": "from appworld.ground_truth import GroundTruth\n" + _shout("GroundTruth.load('made02_1').answer"),
    "models": "from appworld.apps.simple_note.models import Note\n" + _shout("Note.all()"),
    "requester": _shout("requester.request('admin', 'show_main_user')"),
    "requester_of_apis": _shout("apis.requester()"),
    "requester_class": "r = Requester(to_db_home_path='x', from_db_home_path='x')\n" + _shout("r"),
    "api_collection": "c = ApiCollection.load\n" + _shout("c"),
    "subclasses": _shout("().__class__.__base__.__subclasses__()"),
    "subclasses_by_getattr": "n = '__sub' + 'classes__'\n" + _shout("getattr(object, n)()"),
    "frames_of_generator": "g = (g.gi_frame.f_back for _ in [1])\n" + _shout("next(g).f_globals"),
    "frames_of_traceback": "try:\n    1 / 0\nexcept Exception as e:\n    " + _shout("e.__traceback__.tb_frame"),
    "inspect": "import inspect\n" + _shout("inspect.stack()"),
    "sys": "import sys\n" + _shout("sys.modules"),
    "sys_of_module": _shout("datetime.sys.modules"),
    "sys_of_module_renamed": "module = random\n" + _shout("module.heapq, module._os"),
    "codecs_of_json": _shout("json.codecs.open('{answer}').read()"),
    "enum_of_re": _shout("re.enum.sys.modules['os'].listdir('/')"),
    "module_of_a_package": "from pendulum import helpers\n" + _shout("helpers"),
    "pickle": "import pickle\npickle.loads(b\"cposix\\nsystem\\n(S'echo'\\ntR.\")\n" + _shout(""),
    "yaml": "import yaml\nyaml.unsafe_load('!!python/object/apply:os.getcwd []')\n" + _shout(""),
    "eval": "e = eval\n" + _shout("e('1 + 1')"),
    "exec_of_builtins": "b = builtins\n" + _shout("b.exec"),
    "compile": _shout("compile('1', 'x', 'eval')"),
    "globals": _shout("globals()['apis']"),
    "shell": "shell = get_ipython()\n" + _shout("shell"),
    "magic": "env",
    "magic_with_option": "ls - l",
    "format_attributes": "text = '{0.__globals__}'\nx = text.format(print)\nif 'json' in x:\n    " + _shout("x"),
    "format_map": _shout("'{p.__globals__}'.format_map({'p': print})"),
    "format_passed_on": "print(*map('{0.__globals__}'.format, [print]))\n" + _shout(""),
    "string_formatter": "from string import Formatter\n" + _shout("Formatter().format('{0.__globals__}', print)"),
    "attrgetter": "from operator import attrgetter\n" + _shout("attrgetter('__globals__')(print)"),
    "match_by_keyword": "match print:\n    case object(__globals__=g):\n        " + _shout("g"),
    "match_args": (
        "class Any(metaclass=type):\n    __match_args__ = ('__globals__',)\n"
        "match print:\n    case Any(g):\n        " + _shout("g")
    ),
    "update_wrapper": (
        "from functools import update_wrapper\nclass W:\n    def __setattr__(self, n, v):\n        "
        + _shout("v")
        + "\nupdate_wrapper(W(), print, assigned=('__globals__',))"
    ),
    "annotations": (
        "from functools import singledispatch\nf = singledispatch(lambda x: x)\n"
        "@f.register\ndef g(x: '().__class__.__base__.__subclasses__()'):\n    pass\n" + _shout("")
    ),
    "copy_reduce": (
        "import copy\nclass R:\n    def __reduce_ex__(self, p):\n        return (apis.requester, ())\n"
        + _shout("copy.copy(R())")
    ),
    "type_of_three": "kind = type('R', (), {'__reduce_ex__': lambda self, p: (print, ())})\n" + _shout("kind"),
    "type_of_type": "meta = type(type(1))\n" + _shout("meta('R', (), {})"),
    "lookalike_letters": "\uff45val('1')\n" + _shout(""),
    "json_dump": "json.dump({}, '{outside}')\n" + _shout(""),
    "write_outside": "f = open('{outside}', 'w')\nf.write('x')\n" + _shout(""),
    "write_by_pathlib": "from pathlib import Path\nPath('{outside}').touch()\n" + _shout(""),
    "sqlite": "import sqlite3\nsqlite3.connect('{outside}').execute('create table t (x)')\n" + _shout(""),
    "subprocess": "import subprocess\nsubprocess.run(['touch', '{outside}'])\n" + _shout(""),
    "ctypes": "import ctypes\n" + _shout("ctypes.CDLL(None)"),
    "socket": "import socket\nsocket.socket().connect(('127.0.0.1', 1))\n" + _shout(""),
    "fork": "import os\nif os.fork() == 0:\n    while True: os.fork()\n" + _shout(""),
    "threads": "import threading\nthreading.Thread(target=print).start()\n" + _shout(""),
    "path_to_admin": _shout("apis.spotify.show_song(song_id='../../admin/main_users')"),
    "path_of_dots": _shout("apis.spotify.show_song(song_id='..')"),
    "untracked_call": _shout("apis.supervisor.show_profile(track=False)"),
    "own_client": _shout("apis.supervisor.show_profile(client=apis)"),
    "other_time": _shout("apis.supervisor.show_profile(_system_datetime=datetime.datetime(2100, 1, 1))"),
    "admin_app": _shout("apis.admin.show_main_user()"),
    "closing_the_apis": _shout("apis.close()"),
    "exit": "import os\nos._exit(0)\n" + _shout(""),
    "signals": "import signal\nsignal.alarm(0)\n" + _shout(""),
    "environment": "import os\n" + _shout("os.environ"),
    "stateful_path": (
        "class S:\n    n = 0\n    def __str__(self):\n        S.n += 1\n"
        "        return '1' if S.n <= 1 else '../../admin/credit?'\n"
        "card = apis.supervisor.show_payment_cards()[0]\ndel card['card_name']\n"
        "print(apis.spotify.like_song(song_id=S(), amount=1000, **card))\n" + _shout("")
    ),
    "stateful_text": (
        "class S(str):\n    n = 0\n    def __str__(self):\n        S.n += 1\n"
        "        return '1' if S.n <= 1 else '../../admin/main_users'\n"
        + _shout("apis.spotify.show_song(song_id=S('../../admin/main_users'))")
    ),
    "list_in_a_path": _shout("apis.spotify.show_song(song_id=['../../admin/main_users'])"),
    "date_in_a_path": _shout("apis.spotify.show_song(song_id=datetime.now())"),
    "truth_of_a_setting": (
        "class T:\n    def __bool__(self):\n        return apis.admin\n"
        + _shout("apis.spotify.show_song(song_id=1, track=T())")
    ),
}
ATTEMPTS |= {f"after_numbers_and_copy_{name}": _GETATTR + code for name, code in _AFTER_GETATTR.items()}

# These look harmless to the syntax check: later walls hold them.
BEHIND_THE_FILTER = frozenset(
    {"magic", "magic_with_option", "path_to_admin", "path_of_dots", "untracked_call", "own_client", "other_time"}
    | {"admin_app", "closing_the_apis", "json_dump", "module_of_a_package", "type_of_three", "type_of_type"}
    | {"stateful_path", "stateful_text", "list_in_a_path", "date_in_a_path", "truth_of_a_setting"}
    | {f"after_numbers_and_copy_{name}" for name in _AFTER_GETATTR}
)

_PRELUDE = """
import ctypes, errno, fcntl, os, signal, socket, sys, threading, time, mmap
import pyseccomp
libc = ctypes.CDLL(None, use_errno=True)
def won(value=''):
    print('ESC' + 'APED', value)
def asked(name, *arguments):
    ctypes.set_errno(0)
    done = libc.syscall(pyseccomp.resolve_syscall(pyseccomp.system_arch(), name), *arguments)
    return done, ctypes.get_errno()
def listed(folder):
    # Below /home or /var there may be a checkout's own folders, and nothing else.
    shown = ('{repository}/environments', '{site}', '{blind}', '{interpreter}')
    other = [name for name in os.listdir(folder) if not any(one.startswith(f'{folder}/{name}/') for one in shown)]
    if other:
        won(other)
"""

_READ = {
    **{
        f"read {path}": f"won(open('{path}', 'rb').read(200))"
        for path in (
            "{answer}",
            "{secret}",
            "/etc/passwd",
            "/etc/shadow",
            "/etc/hostname",
            "/etc/resolv.conf",
            "/proc/1/environ",
            "/proc/self/environ",
            "/proc/self/mem",
            "/proc/self/maps",
            "/proc/kallsyms",
            "/proc/mounts",
            "/dev/mem",
            "/dev/kmsg",
            "/dev/sda",
            "/dev/vda",
            "/dev/tty",
            "/dev/ptmx",
            "/dev/fuse",
            "/dev/kvm",
            "/dev/shm/x",
            "/sys/kernel/notes",
            "{repository}/pyproject.toml",
            "{repository}/.git/HEAD",
            "{full}/data/base_dbs/spotify.db",
            "/../../..{answer}",
            "/proc/self/root{answer}",
            "/proc/1/root{secret}",
            "/proc/2/cwd{answer}",
        )
    },
    **{
        f"list {path}": f"listed('{path}')"
        for path in (
            "{full}",
            "{repository}/training",
            "{repository}/.git",
            "/home",
            "/var",
            "/run",
            "/sys",
            "/mnt",
            "/boot",
            "/proc/1/fd",
            "/proc/self/fd",
            "/dev/shm",
            "/dev/pts",
            "/root/.ssh",
        )
    },
    "read by link": "os.symlink('{answer}', 'l')\nwon(open('l').read())",
    "read by hard link": "os.link('{answer}', 'h')\nwon(open('h').read())",
    "read by a folder's descriptor": (
        "for fd in range(3, 256):\n    try:\n"
        "        at = os.open('../' * 20 + '{answer}'[1:], os.O_RDONLY, dir_fd=fd)\n"
        "    except OSError:\n        continue\n    won(os.read(at, 50))"
    ),
    "read by a descriptor that is open": (
        "import stat\nfor fd in range(3, 256):\n    try:\n        kind = os.fstat(fd).st_mode\n    except OSError:\n"
        "        continue\n    if stat.S_ISDIR(kind) or stat.S_ISBLK(kind):\n        won(fd)\n"
        "    if stat.S_ISREG(kind) and os.lseek(fd, 0, 0) == 0 and os.read(fd, 3) in (b'WAR', b'Tra'):\n        won(fd)"
    ),
    "read the ground truth by the package": (
        "from appworld import update_root\nfrom appworld.ground_truth import GroundTruth\nupdate_root('{full}')\n"
        "won(GroundTruth.load('made02_1').answer)"
    ),
    "standard streams": (
        "for fd in (0, 1, 2):\n    if os.fstat(fd).st_rdev != os.stat('/dev/null').st_rdev:\n        won(fd)"
    ),
}

_WRITE = {
    **{
        f"write {path}": f"open('{path}', 'ab').write(b'x')\nwon()"
        for path in (
            "{outside}",
            "{blind}/data/tasks/made02_1/specs.json",
            "{blind}/data/x",
            "{blind}/data/base_dbs/spotify.db",
            "{repository}/environments/appworld/engine/worker.py",
            "/usr/bin/x",
            "/etc/ld.so.preload",
            "/x",
            "/dev/x",
            "/proc/sys/kernel/core_pattern",
            "/proc/sysrq-trigger",
            "/dev/shm/x",
            "/root/x",
            "{site}/x.pth",
        )
    },
    "sqlite connect": (
        "import sqlite3\nsqlite3.connect('{blind}/data/base_dbs/x.db').execute('create table t (x)')\nwon()"
    ),
    "sqlite attach": (
        "import sqlite3\nc = sqlite3.connect(':memory:')\nc.execute(\"ATTACH '{outside}' AS o\")\n"
        "c.execute('create table o.t (x)')\nwon()"
    ),
    "sqlite vacuum": "import sqlite3\nsqlite3.connect(':memory:').execute(\"VACUUM INTO '{outside}'\")\nwon()",
    "sqlite base": (
        "import sqlite3\nc = sqlite3.connect('{blind}/data/base_dbs/spotify.db')\nc.execute('delete from songs')\n"
        "c.commit()\nwon()"
    ),
    "chmod the root": "os.chmod('{blind}/data', 0o777)\nwon()",
    "chown the root": "os.chown('{blind}/data', os.getuid(), os.getgid())\nwon()",
    "utime": "os.utime('{blind}/data/tasks/made02_1/specs.json')\nwon()",
    "truncate": "os.truncate('{blind}/data/tasks/made02_1/specs.json', 0)\nwon()",
    "remove": "os.remove('{blind}/data/tasks/made02_1/specs.json')\nwon()",
    "rename": "open('mine', 'w').close()\nos.rename('mine', '{outside}')\nwon()",
    "link into the root": "os.symlink('/tmp', '{blind}/data/l')\nwon()",
    "device": "os.mknod('d', 0o60666, os.makedev(8, 0))\nwon()",
    "fifo": "os.mkfifo('f')\nwon()",
    "set-user-id": "open('s', 'wb').write(b'#!/bin/sh')\nos.chown('s', 0, 0)\nwon()",
    "attribute": "os.setxattr('.', 'user.x', b'1')\nwon()",
    "write to the log": "os.write(1, b'x' * 100)\nos.write(2, b'x')\nfcntl.fcntl(1, fcntl.F_GETFL)",
    "fill the disk": ("f = open('big', 'wb')\nfor _ in range(4096):\n    f.write(b'x' * 2**20)\nf.flush()\nwon()"),
    "fill the disk with files": (
        "for n in range(16):\n    with open(f'big{n}', 'wb') as f:\n        for _ in range(63):\n"
        "            f.write(b'x' * 2**20)\nwon()"
    ),
}

_START = {
    "fork": "os.fork()\nwon()",
    "forkpty": "os.forkpty()\nwon()",
    "vfork": "if libc.vfork() >= 0:\n    won()",
    "system": "if os.system('true') == 0:\n    won()",
    "popen": "won(os.popen('id').read() or 1 / 0)",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})\nwon()",
    "subprocess": "import subprocess\nsubprocess.run(['/bin/touch', '{outside}'])\nwon()",
    "fork_exec of another name": (
        "from importlib.machinery import ExtensionFileLoader\nimport _posixsubprocess\n"
        "if hasattr(_posixsubprocess, '__file__'):\n"
        "    m = ExtensionFileLoader('x._posixsubprocess', _posixsubprocess.__file__).load_module()\n"
        "import subprocess\nsubprocess.Popen(['/bin/true'], close_fds=False)\nwon()"
    ),
    "multiprocessing": (
        "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=print).start()\nwon()"
    ),
    "exec": "os.execv('/bin/sh', ['sh', '-c', 'echo ESC''APED'])\nwon()",
    "exec of memory": "fd = os.memfd_create('x')\nos.execve(fd, ['x'], {})\nwon()",
    "exec by syscall": "if asked('execve', b'/bin/true', None, None)[1] != errno.ENOSYS:\n    won()",
    "execveat": "if asked('execveat', -100, b'/bin/true', None, None, 0)[1] != errno.ENOSYS:\n    won()",
    "clone": "if asked('clone', 17, 0, 0, 0, 0)[0] >= 0:\n    won()",
    "clone with namespaces": "if asked('clone', 0x10000000 | 17, 0, 0, 0, 0)[0] >= 0:\n    won()",
    "clone3": "if asked('clone3', b'\\0' * 64, 64)[1] != errno.ENOSYS:\n    won()",
}

_SIGNAL = {
    "kill": "os.kill({pid}, 0)\nwon()",
    "kill the group": "os.killpg({pid}, signal.SIGTERM)\nwon()",
    "kill all": "os.kill(-1, signal.SIGTERM)",
    "kill every number": (
        "for pid in range(2, 40000):\n    if asked('tgkill', os.getpid(), pid, 0)[0] == 0:\n"
        "        continue  # a thread of its own\n    try:\n        os.kill(pid, 0)\n"
        "    except ProcessLookupError:\n        continue\n    except PermissionError:\n        pass\n    won(pid)"
    ),
    "kill another world": "os.kill({other}, 9)\nwon()",
    "kill by a thread's number": "if asked('tgkill', {pid}, {pid}, 0)[0] == 0:\n    won()",
    "kill by descriptor": "fd = os.pidfd_open({pid})\nsignal.pidfd_send_signal(fd, signal.SIGTERM)\nwon()",
    "queue a signal": "if libc.sigqueue({pid}, 15, 0) == 0:\n    won()",
    "prlimit": "import resource\nresource.prlimit({pid}, resource.RLIMIT_NOFILE, (1, 1))\nwon()",
    "priority": "os.setpriority(os.PRIO_PROCESS, {pid}, 19)\nwon()",
    "priority of the user": "os.setpriority(os.PRIO_USER, 0, 19)\nwon()",
    "nice": "os.nice(-5)\nwon()",
    "affinity": "os.sched_setaffinity({pid}, {0})\nwon()",
    "scheduler": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))\nwon()",
    "trace": "if asked('ptrace', 16, {pid}, 0, 0)[1] != errno.ENOSYS:\n    won()",
    "read memory": "if asked('process_vm_readv', {pid}, None, 0, None, 0, 0)[1] != errno.ENOSYS:\n    won()",
    "write memory": "if asked('process_vm_writev', {pid}, None, 0, None, 0, 0)[1] != errno.ENOSYS:\n    won()",
    "stay alive": "if libc.prctl(1, 0, 0, 0, 0) == 0:\n    won('no longer dies with its parent')",
    "leave the group": "os.setpgid(0, 0)\nwon()",
    "leave the session": "os.setsid()\nwon()",
}

_REACH = {
    "tcp": "socket.create_connection(('127.0.0.1', {port}), 2)\nwon()",
    "tcp 6": "socket.socket(socket.AF_INET6)\nwon()",
    "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))\nwon()",
    "raw": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)\nwon()",
    "packet": "socket.socket(socket.AF_PACKET)\nwon()",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\nwon()",
    "vsock": "socket.socket(socket.AF_VSOCK)\nwon()",
    "unix": "s = socket.socket(socket.AF_UNIX)\ns.connect('{socket}')\nwon()",
    "abstract": "s = socket.socket(socket.AF_UNIX)\ns.connect('\\0{abstract}')\nwon()",
    "pair turned around": (
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.sendto(b'x', '\\0{abstract}')\nwon()"
    ),
    "connect by the pair": "a, b = socket.socketpair()\na.connect('\\0{abstract}')\nwon()",
    "listen": "s = socket.socket(socket.AF_UNIX)\ns.bind('\\0x')\ns.listen()\nwon()",
    "urllib": "import urllib.request\nwon(urllib.request.urlopen('http://127.0.0.1:{port}', timeout=2).read())",
    "shared memory": "if libc.shmget(1, 4096, 0o1666) >= 0:\n    won()",
    "semaphores": "if libc.semget(1, 1, 0o1666) >= 0:\n    won()",
    "message queues": "if libc.msgget(1, 0o1666) >= 0:\n    won()",
    "posix queues": "if asked('mq_open', b'x', 0o102, 0o666, None)[0] >= 0:\n    won()",
}

# A call that is refused by number answers ENOSYS; any other answer says that the kernel looked at it.
_PRIVILEGED = (
    *("mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "fsopen", "fsmount", "move_mount", "open_tree"),
    *("mount_setattr", "swapon", "reboot", "sethostname", "setdomainname", "init_module", "finit_module", "kexec_load"),
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "keyctl", "add_key", "request_key", "seccomp"),
    *("clock_settime", "clock_adjtime", "settimeofday", "adjtimex", "syslog", "acct", "quotactl", "personality"),
    *("setuid", "setgid", "setresuid", "setresgid", "setgroups", "setfsuid", "capset", "open_by_handle_at"),
    *(
        "name_to_handle_at",
        "pidfd_open",
        "pidfd_getfd",
        "pidfd_send_signal",
        "process_madvise",
        "kcmp",
        "fanotify_init",
    ),
    *("inotify_init1", "ioprio_set", "migrate_pages", "move_pages", "socket", "connect", "bind", "listen", "accept4"),
    *(
        "memfd_create",
        "memfd_secret",
        "vhangup",
        "lookup_dcookie",
        "nfsservctl",
        "prctl",
        "ptrace",
        "mknodat",
        "linkat",
    ),
)


def lost_python_attempts() -> dict[str, str]:
    """Whole programs by name."""
    refused = {
        f"call {name}": f"if asked('{name}', 0, 0, 0, 0, 0, 0)[1] != errno.ENOSYS:\n    won()" for name in _PRIVILEGED
    }
    own = {**_READ, **_WRITE, **_START, **_SIGNAL, **_REACH, **refused}
    return {name: _PRELUDE + code for name, code in own.items()}


LISTING_OF_USR = _PRELUDE + "listed('/usr')"
"""An attempt that is not refused: what the others tell if they succeed."""
