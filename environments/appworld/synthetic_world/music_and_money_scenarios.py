"""Define scenarios of songs and payments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from environments.appworld.synthetic_world.plan import ARTISTS, PAYMENTS, WorldPlan
from environments.appworld.synthetic_world.scenario import Scenario, Variant, first_variants, people_from


def _like_a_playlist(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in people_from(plan, 4):
        for title, songs in person.playlists.items():
            missing = sorted(plan.songs[song].title for song in songs if song not in person.liked)
            if 0 < len(missing) < len(songs):
                text = f"Like all the songs of my Spotify playlist '{title}' that I have not liked yet."
                yield Variant(index, text, {"playlist": title, "titles": missing})
                break


def _songs_of_a_genre(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in people_from(plan, 7):
        counts = Counter(plan.songs[song].genre for song in person.library)
        genre, count = counts.most_common()[-1]
        if count > 1:
            text = f"How many songs of the genre {genre} are in my Spotify song library?"
            yield Variant(index, text, {"genre": genre}, count)


def _favourite_artist(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in people_from(plan, 10):
        ranking = Counter(ARTISTS[plan.songs[song].artist] for song in person.liked).most_common()
        if ranking[0][1] > ranking[1][1]:
            text = "Which artist made the most of the songs that I like on Spotify?"
            yield Variant(index, text, {}, ranking[0][0])


def _send_money(plan: WorldPlan) -> Iterator[Variant]:
    for position, (index, person) in enumerate(people_from(plan, 1)):
        contact = person.contacts[position % len(person.contacts)]
        amount, what = 12 + 7 * (position % 5), PAYMENTS[position % len(PAYMENTS)]
        values = {"relationship": contact.relationship, "amount": amount, "description": what}
        text = f"Send ${amount} to my {contact.relationship} on Venmo with the description '{what}'. "
        text += "Who that is stands in my phone's contacts."
        yield Variant(index, text, values | {"email": plan.people[contact.person].email})


def _money_received(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in people_from(plan, 5):
        other = person.contacts[0].person
        giver = plan.people[other]
        total = sum(p.amount for p in plan.payments if p.sender == other and p.receiver == index)
        text = f"How many dollars have I received from {giver.first_name} {giver.last_name} on Venmo in total?"
        yield Variant(index, text, {"email": giver.email}, total)


_ANSWER_ONLY = """
        with test("assert no model changes."):
            test.case(models.changed_model_names(), "==", set())
        """

SCENARIOS = (
    Scenario(
        id="made05",
        split="train",
        difficulty=2,
        apps=("spotify",),
        variants=lambda plan: first_variants(_like_a_playlist(plan)),
        solution="""
        token = login("spotify")
        playlists = pages(apis.spotify.show_playlist_library, access_token=token)
        playlist = next(playlist for playlist in playlists if playlist["title"] == wanted["playlist"])
        liked = {song["song_id"] for song in pages(apis.spotify.show_liked_songs, access_token=token)}
        for song_id in playlist["song_ids"]:
            if song_id not in liked:
                apis.spotify.like_song(song_id=song_id, access_token=token)
        """,
        checks="""
        with test("assert only likes and the songs' counts changed."):
            test.case(models.changed_model_names(ignore=["spotify.Song"]), "==", {"spotify.SongLike"})
        added, updated, removed = models.changed_records("spotify.SongLike")
        with test("assert likes were added, none updated or removed."):
            test.subcases([(len(added), ">", 0), (len(updated), "==", 0), (len(removed), "==", 0)])
        with test("assert exactly the songs not liked before were liked by the user."):
            user = models.end.spotify.User.find_one(email=main_user.email)
            titles = sorted(models.end.spotify.Song.find_one(id=like.song_id).title for like in added)
            test.subcases([
                (titles, "==", wanted["titles"]),
                ({like.user_id for like in added}, "==", {user.id}),
            ])
        """,
    ),
    Scenario(
        id="made06",
        split="train",
        difficulty=2,
        apps=("spotify",),
        variants=lambda plan: first_variants(_songs_of_a_genre(plan)),
        solution="""
        token = login("spotify")
        library = pages(apis.spotify.show_song_library, access_token=token)
        genres = [apis.spotify.show_song(song_id=song["song_id"])["genre"] for song in library]
        answer = genres.count(wanted["genre"])
        """,
        checks=_ANSWER_ONLY,
    ),
    Scenario(
        id="made07",
        split="dev",
        difficulty=2,
        apps=("spotify",),
        variants=lambda plan: first_variants(_favourite_artist(plan)),
        solution="""
        token = login("spotify")
        liked = pages(apis.spotify.show_liked_songs, access_token=token)
        artists = Counter(artist["name"] for song in liked for artist in song["artists"])
        answer = artists.most_common(1)[0][0]
        """,
        checks=_ANSWER_ONLY,
    ),
    Scenario(
        id="made08",
        split="train",
        difficulty=3,
        apps=("phone", "venmo"),
        variants=lambda plan: first_variants(_send_money(plan)),
        solution="""
        contacts = apis.phone.search_contacts(relationship=wanted["relationship"], access_token=login("phone"))
        apis.venmo.create_transaction(
            receiver_email=contacts[0]["email"],
            amount=wanted["amount"],
            description=wanted["description"],
            access_token=login("venmo"),
        )
        """,
        checks="""
        with test("assert only a transaction, balances and a notification changed."):
            changed = models.changed_model_names(ignore=["venmo.User", "venmo.Notification"])
            test.case(changed, "==", {"venmo.Transaction"})
        added, updated, removed = models.changed_records("venmo.Transaction")
        with test("assert one transaction was made and none touched."):
            test.subcases([(len(added), "==", 1), (len(updated), "==", 0), (len(removed), "==", 0)])
        with test("assert the money went from the user to the right person as asked."):
            sender = models.end.venmo.User.find_one(email=main_user.email)
            receiver = models.end.venmo.User.find_one(email=wanted["email"])
            test.subcases([
                (added[0].sender_id, "==", sender.id),
                (added[0].receiver_id, "==", receiver.id),
                (added[0].amount, "==", wanted["amount"]),
                (added[0].description, "==", wanted["description"]),
            ])
        """,
    ),
    Scenario(
        id="made09",
        split="train",
        difficulty=2,
        apps=("venmo",),
        variants=lambda plan: first_variants(_money_received(plan)),
        solution="""
        token = login("venmo")
        received = pages(
            apis.venmo.show_transactions, user_email=wanted["email"], direction="received", access_token=token
        )
        answer = int(sum(payment["amount"] for payment in received))
        """,
        checks=_ANSWER_ONLY,
    ),
)
