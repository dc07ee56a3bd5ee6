"""AppWorld: the real engine in processes of its own, driven by sockets.

The engine runs in a virtual environment of its own (``make appworld``). A *worker* warms one world on a *blind* root,
which holds no solutions and no checks, and forks a process for every episode. A *judge* on the *full* root evaluates
what episodes saved. Neither shares code objects with this process; ``client.AppWorldEngine`` starts and watches both.

Who runs `appworld serve environment` already can play there instead (``served_worlds.AppWorldServers``), over HTTP and
with fewer walls than those below: that module says which, and why it must be asked for.

What keeps an agent's code from answers and from other processes, from the outside in:

- its process has no ground truth within reach, an environment without this process's variables, limits on memory,
  processor time and file size, and is killed with its whole group at a deadline or when its parent is gone;
- what Python reports of itself is checked: no programs, no network, no native libraries, no files outside its
  episode's folder, the blind root and Python's own (``engine/confinement.py``);
- its namespace has stand-ins for allowed modules, builtins without those that reach further, and the APIs without
  their requester (``engine/namespace.py``); path parameters cannot leave an API's own path (``engine/api_calls.py``);
- its text is refused for what it names (``engine/code_filter.py``).

What that does not cover: this is hardening, not isolation. The code runs as the same user as everything else. Who
breaks the interpreter itself (a flaw in a C module, memory written through one) is past every wall above and can read
the full root, signal the user's processes and use the network. Types of native functions can be reached by code that
gets past the filter, and from them memory. A world that is broken that way can also report calls and database changes
that never were, and the judge replays the changes as SQL. A processor kept busy, or memory below the limit taken by
many episodes at once, slows the others. Limits on memory and the death of children with their zygote rely on Linux.
Run agents that you do not trust in a container, or as another user, who cannot read the full root.
"""
