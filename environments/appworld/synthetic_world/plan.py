"""Generate the people of a synthetic world and their possessions: plain data, the same for the same seed.

Every value that a scenario uses is drawn here, so that instructions, content and answers agree. ``CONTENT`` writes the
possessions into the apps, one function per app.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

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


class Song(NamedTuple):
    """A song by its place in the catalogue: ``artist`` and ``album`` are indices."""

    title: str
    artist: int
    album: int
    genre: str


class Contact(NamedTuple):
    """A person's contact: ``person`` is an index into the world's people."""

    person: int
    relationship: str


class Chore(NamedTuple):
    """A task of a to-do project."""

    title: str
    priority: str
    done: bool


class Payment(NamedTuple):
    """Money that ``sender`` gave ``receiver`` (indices of people), in whole dollars."""

    sender: int
    receiver: int
    amount: int
    description: str
    at: datetime


class Person(NamedTuple):
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


class WorldPlan(NamedTuple):
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


class Owners(NamedTuple):
    """The package's models and APIs, and each person's user and access token of every app."""

    models: Any
    apis: Any
    users: list[dict[str, Any]]
    tokens: list[dict[str, str]]


def file_system(owners: Owners, plan: WorldPlan) -> None:
    """Add a home folder per person."""
    for tokens in owners.tokens:
        for folder in ("/", "~/documents"):
            owners.apis.file_system.create_directory(
                directory_path=folder, recursive=True, access_token=tokens["file_system"]
            )


def simple_note(owners: Owners, plan: WorldPlan) -> None:
    """Add every person's notes."""
    for person, tokens in zip(plan.people, owners.tokens, strict=True):
        for title, content in person.notes.items():
            owners.apis.simple_note.create_note(
                title=title, content=content, tags=[], pinned=False, access_token=tokens["simple_note"]
            )


def phone(owners: Owners, plan: WorldPlan) -> None:
    """Add contacts and alarms, and a text message to every contact."""
    for person, users, tokens in zip(plan.people, owners.users, owners.tokens, strict=True):
        for contact in person.contacts:
            other = plan.people[contact.person]
            owners.models.phone.Contact.create_save(
                user_id=users["phone"].id,
                first_name=other.first_name,
                last_name=other.last_name,
                email=other.email,
                phone_number=other.phone_number,
                relationships=[contact.relationship],
            )
        for label, time in person.alarms.items():
            owners.apis.phone.create_alarm(time=time, label=label, access_token=tokens["phone"])
        for contact in person.contacts[:2]:
            owners.apis.phone.send_text_message(
                phone_number=plan.people[contact.person].phone_number,
                message=f"Hi {plan.people[contact.person].first_name}, are you free this week?",
                access_token=tokens["phone"],
            )


def spotify(owners: Owners, plan: WorldPlan) -> None:
    """Add the catalogue, then every person's player, library, likes and playlists."""
    songs = _catalogue(owners.models.spotify, plan)
    apis = owners.apis.spotify
    for person, users, tokens in zip(plan.people, owners.users, owners.tokens, strict=True):
        token = {"access_token": tokens["spotify"]}
        owners.models.spotify.MusicPlayer.create_save(
            user_id=users["spotify"].id,
            queue_song_ids=[songs[song] for song in person.library[:4]],
            is_playing=False,
            is_looping=False,
            cursor_position=0,
            played_seconds=0,
            volume=5,
        )
        for song in person.library:
            apis.add_song_to_library(song_id=songs[song], **token)
        for song in person.liked:
            apis.like_song(song_id=songs[song], **token)
        for title, members in person.playlists.items():
            playlist = apis.create_playlist(title=title, **token)["playlist_id"]
            for song in members:
                apis.add_song_to_playlist(playlist_id=playlist, song_id=songs[song], **token)


def _catalogue(models: Any, plan: WorldPlan) -> list[int]:  # noqa: ANN401 - the package has no types
    """Add artists, albums and songs; return the id of each of the plan's songs."""
    from appworld.common.datetime import DateTime

    genres = {song.artist: song.genre for song in plan.songs}
    artists = [
        models.Artist.create_save(name=name, genre=genres[index], created_at=DateTime(2014, 5, 1))
        for index, name in enumerate(ARTISTS)
    ]
    albums: dict[int, Any] = {}
    ids = []
    for position, song in enumerate(plan.songs):
        by = {"artist_ids": [artists[song.artist].id], "release_date": DateTime(2015 + song.album % 8, 3, 1)}
        if song.album not in albums:
            title = f"{song.title} and other songs"
            albums[song.album] = models.Album.create_save(title=title, genre=song.genre, rating=3.5, **by)
        made = models.Song.create_save(
            title=song.title,
            album_id=albums[song.album].id,
            duration=150 + 7 * (position % SONGS_AN_ALBUM),
            genre=song.genre,
            play_count=10 + 13 * position,
            rating=3.0,
            **by,
        )
        ids.append(made.id)
    return ids


def todoist(owners: Owners, plan: WorldPlan) -> None:
    """Add every person's projects and their tasks, some of which are done."""
    apis = owners.apis.todoist
    for person, tokens in zip(plan.people, owners.tokens, strict=True):
        token = {"access_token": tokens["todoist"]}
        for name, chores in person.projects.items():
            project = apis.create_project(name=name, **token)["project_id"]
            for chore in chores:
                task = apis.create_task(project_id=project, title=chore.title, priority=chore.priority, **token)
                if chore.done:
                    apis.update_task(task_id=task["task_id"], is_completed=True, **token)


def venmo(owners: Owners, plan: WorldPlan) -> None:
    """Add friends and the plan's payments at their own times."""
    from appworld.common.datetime import DateTime

    users = [users["venmo"] for users in owners.users]
    for person, tokens in zip(plan.people, owners.tokens, strict=True):
        for contact in person.contacts[:3]:
            owners.apis.venmo.add_friend(
                user_email=plan.people[contact.person].email, access_token=tokens["venmo"], raise_on_failure=False
            )
    for payment in plan.payments:
        at = DateTime(*payment.at.timetuple()[:5])
        owners.models.venmo.Transaction.create_save(
            sender_id=users[payment.sender].id,
            receiver_id=users[payment.receiver].id,
            amount=float(payment.amount),
            description=payment.description,
            created_at=at,
            updated_at=at,
            private=False,
        )


CONTENT: tuple[Callable[[Owners, WorldPlan], None], ...] = (file_system, simple_note, phone, spotify, todoist, venmo)
