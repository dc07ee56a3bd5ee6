"""Define the scenarios of a synthetic world: three variants of one instruction, their solution and their checks.

``scenarios.toml`` has what the variants share; this module draws persons, values and answers from a plan.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.appworld.synthetic_world.plan import ARTISTS, PAYMENTS, Person, WorldPlan

VARIANTS = 3

_TITLES = ("Paint colours", "Packing list", "Car service")
_CONTENTS = ("sage green for the hall", "passport, charger, raincoat", "oil and brakes on Friday")
_MESSAGES = ("I am running ten minutes late.", "Dinner is at seven on Sunday.", "Please bring the blue folder.")


@dataclass(frozen=True)
class Variant:
    """One task: its person, its instruction, its values and its answer (None: no answer is expected)."""

    person: int
    instruction: str
    values: dict[str, Any]
    answer: str | int | float | None = None


@dataclass(frozen=True)
class Scenario:
    """Tasks that differ in values only; ``found`` yields as many variants as a plan has.

    ``solution`` is the body of the reference code; it can use ``login(app)`` and ``pages(api, **arguments)``, and has
    ``values`` as ``wanted``. ``checks`` is the body of the package's ``evaluate``, where ``wanted`` are
    the same values; it comes after the check of the answer.
    """

    id: str
    found: Callable[[WorldPlan], Iterator[Variant]]
    split: str
    difficulty: int
    apps: list[str]
    solution: str
    checks: str

    def variants(self, plan: WorldPlan) -> list[Variant]:
        """Return the first three variants. Raises ValueError when the plan gives fewer."""
        variants = [variant for variant, _ in zip(self.found(plan), range(VARIANTS), strict=False)]
        if len(variants) < VARIANTS:
            raise ValueError("this seed's plan has too little for a scenario: use another seed")
        return variants


def _people_from(plan: WorldPlan, first: int) -> Iterator[tuple[int, Person]]:
    """Yield every person once, beginning with ``first``, so that scenarios do not all use the same three people."""
    count = len(plan.people)
    for offset in range(count):
        yield (first + offset) % count, plan.people[(first + offset) % count]


def _new_note(plan: WorldPlan) -> Iterator[Variant]:
    for (index, _), title, content in zip(_people_from(plan, 0), _TITLES, _CONTENTS, strict=False):
        text = f"Create a note titled '{title}' with the content '{content}' in Simple Note."
        yield Variant(index, text, {"title": title, "content": content})


def _network_password(plan: WorldPlan) -> Iterator[Variant]:
    for (index, person), network in zip(_people_from(plan, 3), ("guest", "office", "main"), strict=False):
        text = f"What is the password of the {network} network, according to my 'Home Wifi' note in Simple Note?"
        yield Variant(index, text, {"network": network}, person.networks[network])


def _alarm_off(plan: WorldPlan) -> Iterator[Variant]:
    for (index, _), label in zip(_people_from(plan, 6), ("Gym", "Laundry", "Medicine"), strict=False):
        yield Variant(index, f"Disable the phone alarm that I labelled '{label}'.", {"label": label})


def _text_message(plan: WorldPlan) -> Iterator[Variant]:
    for position, ((index, person), message) in enumerate(zip(_people_from(plan, 9), _MESSAGES, strict=False)):
        contact = person.contacts[position]
        number = plan.people[contact.person].phone_number
        text = f"Send a text message to my {contact.relationship}: '{message}'"
        yield Variant(index, text, {"relationship": contact.relationship, "message": message, "phone_number": number})


def _urgent_chores(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in _people_from(plan, 2):
        project = next(iter(person.projects))
        titles = sorted(c.title for c in person.projects[project] if c.priority == "high" and not c.done)
        text = f"Mark every task of high priority in my Todoist project '{project}' as completed."
        yield Variant(index, text, {"project": project, "titles": titles})


def _like_a_playlist(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in _people_from(plan, 4):
        for title, songs in person.playlists.items():
            missing = sorted(plan.songs[song].title for song in songs if song not in person.liked)
            if 0 < len(missing) < len(songs):
                text = f"Like all the songs of my Spotify playlist '{title}' that I have not liked yet."
                yield Variant(index, text, {"playlist": title, "titles": missing})
                break


def _songs_of_a_genre(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in _people_from(plan, 7):
        counts = Counter(plan.songs[song].genre for song in person.library)
        genre, count = counts.most_common()[-1]
        if count > 1:
            text = f"How many songs of the genre {genre} are in my Spotify song library?"
            yield Variant(index, text, {"genre": genre}, count)


def _favourite_artist(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in _people_from(plan, 10):
        ranking = Counter(ARTISTS[plan.songs[song].artist] for song in person.liked).most_common()
        if ranking[0][1] > ranking[1][1]:
            text = "Which artist made the most of the songs that I like on Spotify?"
            yield Variant(index, text, {}, ranking[0][0])


def _send_money(plan: WorldPlan) -> Iterator[Variant]:
    for position, (index, person) in enumerate(_people_from(plan, 1)):
        contact = person.contacts[position % len(person.contacts)]
        amount, what = 12 + 7 * (position % 5), PAYMENTS[position % len(PAYMENTS)]
        values = {"relationship": contact.relationship, "amount": amount, "description": what}
        text = f"Send ${amount} to my {contact.relationship} on Venmo with the description '{what}'. "
        text += "Who that is stands in my phone's contacts."
        yield Variant(index, text, values | {"email": plan.people[contact.person].email})


def _money_received(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in _people_from(plan, 5):
        other = person.contacts[0].person
        giver = plan.people[other]
        total = sum(p.amount for p in plan.payments if p.sender == other and p.receiver == index)
        text = f"How many dollars have I received from {giver.first_name} {giver.last_name} on Venmo in total?"
        yield Variant(index, text, {"email": giver.email}, total)


_DRAWN: dict[str, Callable[[WorldPlan], Iterator[Variant]]] = {
    "made01": _new_note,
    "made02": _network_password,
    "made03": _alarm_off,
    "made04": _text_message,
    "made05": _like_a_playlist,
    "made06": _songs_of_a_genre,
    "made07": _favourite_artist,
    "made08": _send_money,
    "made09": _money_received,
    "made10": _urgent_chores,
}
_SHARED = tomllib.loads(Path(__file__).with_name("scenarios.toml").read_text(encoding="utf-8"))
SCENARIOS = tuple(Scenario(id=name, found=found, **_SHARED[name]) for name, found in _DRAWN.items())
