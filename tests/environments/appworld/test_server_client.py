"""One exchange with a server over HTTP: its answer, or a fault with its words, within the deadline."""

from __future__ import annotations

import re
import time

import pytest
from support.scripted_server import cut_off, dripped, said, scripted

from environments.appworld import servers as server_client
from environments.appworld.servers import NoAnswer, Server
from environments.base import EnvironmentFault


def test_the_output_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # must not be asked
    monkeypatch.setenv("NO_PROXY", "")
    with scripted({"/execute": said({"output": {"value": [1, None]}})}) as url:
        server = Server(url)
        server.check(5)
        server.greet(5)
        assert server.ask("/execute", {"task_id": "a_1"}, 5) == {"value": [1, None]}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (said("the database is locked", 500), "HTTP status 500: the database is locked"),
        (said({"detail": "x" * 9000}, 422), "HTTP status 422: "),
        (said("<html>"), "is no JSON"),
        (said({"message": "hello"}), "has no output: {'message': 'hello'}"),
        (said([1]), "has no output"),
        (cut_off, "/execute failed: "),
    ],
)
def test_what_is_no_answer_is_told_with_the_servers_words(answer, says) -> None:  # type: ignore[no-untyped-def]
    with scripted({"/execute": answer}) as url:
        with pytest.raises(EnvironmentFault, match=re.escape(says)) as caught:
            Server(url).ask("/execute", {}, 5)
        assert str(caught.value).startswith(f"AppWorld's server {url}: ")
        assert len(str(caught.value)) < server_client.QUOTED + 300


def test_the_deadline_holds_for_a_silent_and_for_a_dripping_server() -> None:
    with scripted({"/silent": lambda _: time.sleep(3), "/dripping": dripped(3)}) as url:
        for path in ("/silent", "/dripping"):
            with pytest.raises(NoAnswer, match=f"did not answer {path} within 0.3 s"):
                Server(url).ask(path, {}, 0.3)


def test_an_answer_has_a_longest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_client, "MAX_BYTES", 1000)
    with (
        scripted({"/execute": said({"output": "x" * 2000})}) as url,
        pytest.raises(EnvironmentFault, match="longer than"),
    ):
        Server(url).ask("/execute", {}, 5)


def test_what_cannot_be_reached_or_is_another_server_is_told() -> None:
    paths = said({"paths": {"/spotify/login": {}}})
    with (
        scripted({"/openapi.json": paths}) as url,
        pytest.raises(EnvironmentFault, match="it is not a server of AppWorld"),
    ):
        Server(url).check(5)
    for ended in (url, "http://no-such-host.invalid:80", "http://[broken"):
        with pytest.raises(EnvironmentFault) as caught:
            Server(ended).greet(5)
        assert not isinstance(caught.value, NoAnswer)
