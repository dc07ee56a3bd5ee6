"""Write the possessions of a plan's people into the apps, one function per app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from environments.appworld.synthetic_world.plan import ARTISTS, SONGS_AN_ALBUM, WorldPlan


@dataclass(frozen=True)
class Owners:
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
        at = DateTime(*_date(payment.at))
        owners.models.venmo.Transaction.create_save(
            sender_id=users[payment.sender].id,
            receiver_id=users[payment.receiver].id,
            amount=float(payment.amount),
            description=payment.description,
            created_at=at,
            updated_at=at,
            private=False,
        )


def _date(at: datetime) -> tuple[int, int, int, int, int]:
    return at.year, at.month, at.day, at.hour, at.minute


CONTENT: tuple[Callable[[Owners, WorldPlan], None], ...] = (file_system, simple_note, phone, spotify, todoist, venmo)
