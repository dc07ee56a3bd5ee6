"""Generate the people of a synthetic world and their possessions: plain data, the same for the same seed.

Every value that a scenario uses is drawn here, so that instructions, content and answers agree.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

FIRST_NAMES = ("Alma", "Boris", "Celia", "Dario", "Edith", "Fabian", "Greta", "Hamid", "Ingrid", "Joel", "Kaya", "Leif")
LAST_NAMES = ("Arnold", "Brandt", "Calder", "Dunmore", "Ekholm", "Farrow", "Gosling", "Harper", "Ibsen", "Jarvis")
RELATIONSHIPS = ("friend", "sibling", "coworker", "roommate", "neighbor")
GENRES = ("pop", "rock", "jazz", "folk")
ADJECTIVES = ("Amber", "Broken", "Copper", "Distant", "Empty", "Frozen", "Gentle", "Hidden", "Ivory", "Quiet")
NOUNS = ("Harbour", "Lantern", "Orchard", "Paper", "River", "Signal", "Tower", "Window")
ARTISTS = ("The Salt Mills", "Nora Kestrel", "Plain Geometry", "Odd Ferries", "Vera Lind", "Cold Stations")
PLAYLISTS = ("Morning Run", "Slow Evenings", "Road Trip", "Deep Focus", "Kitchen Songs")
ALARMS = ("Wake up", "Gym", "Medicine", "Laundry", "Call home")
PROJECTS = ("House move", "Garden", "Thesis", "Birthday party")
CHORES = (
    *("Buy boxes", "Call the plumber", "Print photos", "Water plants", "Order cake", "Fix the lamp", "Book a van"),
    *("Write the outline", "Sort receipts", "Clean the oven", "Plant tomatoes", "Send invitations"),
)
PAYMENTS = ("lunch", "rent", "concert", "taxi", "books")
NETWORKS = ("main", "guest", "office")
ALBUMS_AN_ARTIST = 2
SONGS_AN_ALBUM = 4
CONTACTS = 5
PRIORITIES = ("high", "medium", "low")

Item = TypeVar("Item")


@dataclass(frozen=True)
class Song:
    """A song by its place in the catalogue: ``artist`` and ``album`` are indices."""

    title: str
    artist: int
    album: int
    genre: str


@dataclass(frozen=True)
class Contact:
    """A person's contact: ``person`` is an index into the world's people."""

    person: int
    relationship: str


@dataclass(frozen=True)
class Chore:
    """A task of a to-do project."""

    title: str
    priority: str
    done: bool


@dataclass(frozen=True)
class Payment:
    """Money that ``sender`` gave ``receiver`` (indices of people), in whole dollars."""

    sender: int
    receiver: int
    amount: int
    description: str
    at: datetime


@dataclass(frozen=True)
class Person:
    """One main user with their possessions; songs are indices into the catalogue."""

    first_name: str
    last_name: str
    email: str
    phone_number: str
    birthday: str
    sex: str
    contacts: tuple[Contact, ...]
    notes: dict[str, str]
    networks: dict[str, str]
    alarms: dict[str, str]
    playlists: dict[str, tuple[int, ...]]
    library: tuple[int, ...]
    liked: tuple[int, ...]
    projects: dict[str, tuple[Chore, ...]]

    def password(self, app: str) -> str:
        """Return the password of this person's account of ``app``."""
        return f"{self.first_name.lower()}-{app.replace('_', '-')}-{self.phone_number[-3:]}"


@dataclass(frozen=True)
class WorldPlan:
    """A whole synthetic world."""

    seed: int
    people: tuple[Person, ...]
    songs: tuple[Song, ...]
    payments: tuple[Payment, ...]


def make_plan(seed: int) -> WorldPlan:
    """Return the world of ``seed``: one person per first name, a catalogue of songs, payments between the people."""
    draw = random.Random(seed)
    songs = _songs(draw)
    people = tuple(_person(draw, index, len(songs)) for index in range(len(FIRST_NAMES)))
    return WorldPlan(seed=seed, people=people, songs=songs, payments=_payments(draw, people))


def _songs(draw: random.Random) -> tuple[Song, ...]:
    titles = _sample(
        draw,
        [f"{adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS],
        len(ARTISTS) * ALBUMS_AN_ARTIST * SONGS_AN_ALBUM,
    )
    return tuple(
        Song(
            title=title,
            artist=position // (ALBUMS_AN_ARTIST * SONGS_AN_ALBUM),
            album=position // SONGS_AN_ALBUM,
            genre=GENRES[position // (ALBUMS_AN_ARTIST * SONGS_AN_ALBUM) % len(GENRES)],
        )
        for position, title in enumerate(titles)
    )


def _person(draw: random.Random, index: int, catalogue: int) -> Person:
    first, last = FIRST_NAMES[index], LAST_NAMES[index % len(LAST_NAMES)]
    others = _sample(draw, [other for other in range(len(FIRST_NAMES)) if other != index], CONTACTS)
    networks = {name: f"{draw.choice(NOUNS).lower()}{draw.randint(100, 999)}" for name in NETWORKS}
    notes = {
        "Home Wifi": "\n".join(f"{name} network: {password}" for name, password in networks.items()),
        "Groceries": "\n".join(f"- {item}" for item in _sample(draw, ["milk", "eggs", "rice", "tea", "soap"], 3)),
        "Gift ideas": "\n".join(f"{FIRST_NAMES[other]}: {draw.choice(('a scarf', 'a mug'))}" for other in others[:2]),
    }
    return Person(
        first_name=first,
        last_name=last,
        email=f"{first}.{last}@example.com".lower(),
        phone_number=f"555{index + 10:07d}",
        birthday=f"19{70 + index}-0{1 + index % 9}-1{index % 9}",
        sex=("female", "male")[index % 2],
        contacts=tuple(Contact(other, kind) for other, kind in zip(others, RELATIONSHIPS, strict=True)),
        notes=notes,
        networks=networks,
        alarms={label: f"{draw.randint(5, 22):02d}:{draw.choice((0, 15, 30, 45)):02d}" for label in ALARMS},
        playlists={title: tuple(_sample(draw, range(catalogue), 6)) for title in _sample(draw, PLAYLISTS, 3)},
        library=tuple(_sample(draw, range(catalogue), 12 + index % 3)),
        liked=tuple(_sample(draw, range(catalogue), 9)),
        projects={name: _chores(draw) for name in _sample(draw, PROJECTS, 2)},
    )


def _chores(draw: random.Random) -> tuple[Chore, ...]:
    """Draw six chores: at least two of high priority are open, one is done, and one open one is not urgent."""
    kinds = [("high", False), ("high", False), ("high", True), (draw.choice(PRIORITIES[1:]), False)]
    kinds += [(draw.choice(PRIORITIES), draw.random() < 0.3) for _ in range(2)]
    draw.shuffle(kinds)
    return tuple(Chore(title, *kind) for title, kind in zip(_sample(draw, CHORES, len(kinds)), kinds, strict=True))


def _payments(draw: random.Random, people: tuple[Person, ...]) -> tuple[Payment, ...]:
    """Draw two or three payments each way between every person and their first three contacts, over some months."""
    start = datetime(2023, 1, 10, 9)
    payments = []
    for index, person in enumerate(people):
        for contact in person.contacts[:3]:
            for sender, receiver in ((index, contact.person), (contact.person, index)):
                for _ in range(draw.randint(2, 3)):
                    at = start + timedelta(days=draw.randint(0, 110), hours=draw.randint(0, 9))
                    payments.append(Payment(sender, receiver, draw.randint(5, 60), draw.choice(PAYMENTS), at))
    return tuple(payments)


def _sample(draw: random.Random, items: range | list[Item] | tuple[Item, ...], count: int) -> list[Item]:
    return draw.sample(list(items), count)  # type: ignore[arg-type]
