"""Says what AppWorld tells an agent before its task: whom it works for, when it is, and how to act. Our own words."""

from __future__ import annotations

from environments.appworld.records import Opening

_WHO = """\
You work for {first_name} {last_name}, your supervisor, and do in the supervisor's apps what they ask for. Their email \
address is {email}, their phone number {phone_number}. The date and time is {now}."""

_HOW = """\
You act by writing Python, one block a step: in your message between a line ```python and a line ```, or as a call of \
the tool python. You are then told what the block printed, or its error, and only that: print what you want to see.
- Variables, functions and imports are kept from block to block.
- Apps are called as apis.APP.API(parameter=value). Do not guess names: apis.api_docs.show_app_descriptions() lists \
the apps, apis.api_docs.show_api_descriptions(app_name=...) an app's APIs, and \
apis.api_docs.show_api_doc(app_name=..., api_name=...) tells an API's parameters and answer.
- apis.supervisor.show_profile() and apis.supervisor.show_account_passwords() tell what signing in to an app needs; \
most APIs want the access_token that an app's login answers with. Addresses and payment cards are there too.
- Long lists come in pages: ask for further ones until a page is empty.
- Only a part of Python is allowed: no files, no network, no operating system. The apps are the only way to act.
- When the task is done, call apis.supervisor.complete_task(); where it asks a question, \
apis.supervisor.complete_task(answer=...) with the bare value and no words around it. Nothing runs after that.
Nobody answers questions: decide yourself, and change nothing that was not asked for."""


def preface(opening: Opening, *, by_code: bool) -> str:
    """The text for a world's beginning; ``by_code``: whether the agent has the tool python, else how to act is left
    to the documentation of its tools.
    """
    who = _WHO.format(now=opening.now.replace("T", " "), **opening.supervisor.model_dump())
    return f"{who}\n\n{_HOW}" if by_code else who
