"""AppWorld: the real engine in processes of its own, driven by sockets.

The engine runs in a virtual environment of its own (``make appworld``). A *worker* warms one world on a *blind* root,
which holds no solutions and no checks, and forks a process for every episode. A *judge* on the *full* root evaluates
what episodes saved. Neither shares code objects with this process; ``client.AppWorldEngine`` starts and watches both.

Who runs `appworld serve environment` already can play there instead (``served_worlds.AppWorldServers``), over HTTP and
with fewer walls than those below: that module says which, and why it must be asked for.

What keeps an agent's code from answers and from everything else on the machine is the kernel (``sandbox``, and inside
it ``engine/wall.py``). Worker and judge run under bubblewrap: read-only file systems that hold programs, the engine and
one root, no network, no other process, never root. Each episode is in namespaces of its own inside that, without a
capability, with one place in memory to write to and a short list of system calls. Assume that Python is lost there: no
file of the user is in reach, nor an answer, a process, a connection or another episode. Limits on memory, processor
time and file size hold beside it, and a world is killed with all that it started at a deadline.

Before the wall stand fences, which keep code to what the benchmark allows and say what is wrong with it: its text is
refused for what it names (``engine/code_filter.py``), its namespace has stand-ins for allowed modules and the APIs
without their requester (``engine/namespace.py``), and an API's arguments become JSON values once, before anything looks
at them (``engine/api_calls.py``). Code that gets past the fences can make its own world say anything: calls that never
were, and databases that no app wrote. What a world says is parsed with limits, the judge takes no statement of it but
changes of rows, and whatever fails after a world was given code is the agent's failure (``backend.WorldLost``).

What is left: a flaw of the kernel; the programs and libraries below /usr, which can be read; processor time and memory
below the limits, which many episodes at once take from each other. Where the wall is missing (another system than
Linux, no bubblewrap, no user namespaces) AppWorld opens with ``trust_agent_code`` alone, and code then runs as the
user.
"""
