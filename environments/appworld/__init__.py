"""Run AppWorld: the real engine in processes of its own, driven by sockets.

The engine runs in a virtual environment of its own (``make appworld``). A *worker* warms one world on a *blind* root,
which holds no solutions and no checks, and forks a process for every episode. An *evaluator* on the *full* root
evaluates what episodes saved. Neither shares code objects with this process; ``client.AppWorldEngine`` starts and
watches both.

The kernel isolates an agent's code from the tasks' answers and from the rest of the machine (``sandbox``, and inside
it ``engine/wall.py``). Both run under bubblewrap: read-only file systems with programs, the engine and one root, no
network, no other process, never root. Each episode runs in namespaces of its own inside that, without a capability,
with one writable file system in memory and a short list of system calls. The isolation assumes that code
can break out of Python: even then it reaches no file of the user, no answer, process, connection or other episode.
Limits on memory, processor time and file size apply in addition, and a world is killed with its processes at a
deadline.

Inside this sandbox, further checks keep code to the benchmark's rules and report violations: its text is refused for
forbidden names (``engine/code_filter.py``), its namespace has stand-ins for allowed modules and the APIs without their
requester (the same file), and an API's arguments become JSON values once, before they are read
(``engine/worker.py``). Code that bypasses these checks can forge its own world's reports: API calls that were not
made, and databases that no app wrote. A world's messages are therefore parsed with limits, the evaluator accepts only
changes of rows from it, and every failure after a world was given code is the agent's failure (``client.WorldLost``).

Remaining risks: a flaw of the kernel; the programs and libraries below /usr, which can be read; processor time and
memory below the limits, for which concurrent episodes compete. Where the sandbox is missing (a system other than Linux,
no bubblewrap, no user namespaces) AppWorld does not open.
"""
