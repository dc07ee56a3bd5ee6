"""Define scenarios of notes, phone and to-do lists."""

from __future__ import annotations

from collections.abc import Iterator

from environments.appworld.synthetic_world.plan import WorldPlan
from environments.appworld.synthetic_world.scenario import Scenario, Variant, first_variants, people_from

_TITLES = ("Paint colours", "Packing list", "Car service")
_CONTENTS = ("sage green for the hall", "passport, charger, raincoat", "oil and brakes on Friday")
_MESSAGES = ("I am running ten minutes late.", "Dinner is at seven on Sunday.", "Please bring the blue folder.")


def _new_note(plan: WorldPlan) -> Iterator[Variant]:
    for (index, _), title, content in zip(people_from(plan, 0), _TITLES, _CONTENTS, strict=False):
        text = f"Create a note titled '{title}' with the content '{content}' in Simple Note."
        yield Variant(index, text, {"title": title, "content": content})


def _network_password(plan: WorldPlan) -> Iterator[Variant]:
    for (index, person), network in zip(people_from(plan, 3), ("guest", "office", "main"), strict=False):
        text = f"What is the password of the {network} network, according to my 'Home Wifi' note in Simple Note?"
        yield Variant(index, text, {"network": network}, person.networks[network])


def _alarm_off(plan: WorldPlan) -> Iterator[Variant]:
    for (index, _), label in zip(people_from(plan, 6), ("Gym", "Laundry", "Medicine"), strict=False):
        yield Variant(index, f"Disable the phone alarm that I labelled '{label}'.", {"label": label})


def _text_message(plan: WorldPlan) -> Iterator[Variant]:
    for position, ((index, person), message) in enumerate(zip(people_from(plan, 9), _MESSAGES, strict=False)):
        contact = person.contacts[position]
        number = plan.people[contact.person].phone_number
        text = f"Send a text message to my {contact.relationship}: '{message}'"
        yield Variant(index, text, {"relationship": contact.relationship, "message": message, "phone_number": number})


def _urgent_chores(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in people_from(plan, 2):
        project = next(iter(person.projects))
        titles = sorted(c.title for c in person.projects[project] if c.priority == "high" and not c.done)
        text = f"Mark every task of high priority in my Todoist project '{project}' as completed."
        yield Variant(index, text, {"project": project, "titles": titles})


SCENARIOS = (
    Scenario(
        id="made01",
        split="train",
        difficulty=1,
        apps=("simple_note",),
        variants=lambda plan: first_variants(_new_note(plan)),
        solution="""
        token = login("simple_note")
        apis.simple_note.create_note(title=wanted["title"], content=wanted["content"], access_token=token)
        """,
        checks="""
        with test("assert only notes changed."):
            test.case(models.changed_model_names(), "==", {"simple_note.Note"})
        added, updated, removed = models.changed_records("simple_note.Note")
        with test("assert one note was added and none touched."):
            test.subcases([(len(added), "==", 1), (len(updated), "==", 0), (len(removed), "==", 0)])
        with test("assert the note is the user's and as asked."):
            user = models.end.simple_note.User.find_one(email=main_user.email)
            test.subcases([
                (added[0].user_id, "==", user.id),
                (added[0].title, "==", wanted["title"]),
                (added[0].content, "==", wanted["content"]),
            ])
        """,
    ),
    Scenario(
        id="made02",
        split="dev",
        difficulty=1,
        apps=("simple_note",),
        variants=lambda plan: first_variants(_network_password(plan)),
        solution="""
        token = login("simple_note")
        found = apis.simple_note.search_notes(query="Home Wifi", access_token=token)
        note = next(note for note in found if note["title"] == "Home Wifi")
        content = apis.simple_note.show_note(note_id=note["note_id"], access_token=token)["content"]
        lines = dict(line.split(" network: ") for line in content.splitlines())
        answer = lines[wanted["network"]]
        """,
        checks="""
        with test("assert no model changes."):
            test.case(models.changed_model_names(), "==", set())
        """,
    ),
    Scenario(
        id="made03",
        split="train",
        difficulty=1,
        apps=("phone",),
        variants=lambda plan: first_variants(_alarm_off(plan)),
        solution="""
        token = login("phone")
        alarms = pages(apis.phone.show_alarms, access_token=token)
        alarm = next(alarm for alarm in alarms if alarm["label"] == wanted["label"])
        apis.phone.update_alarm(alarm_id=alarm["alarm_id"], enabled=False, access_token=token)
        """,
        checks="""
        with test("assert only alarms changed."):
            test.case(models.changed_model_names(), "==", {"phone.Alarm"})
        added, updated, removed = models.changed_records("phone.Alarm")
        with test("assert one alarm was updated, none added or removed."):
            test.subcases([(len(added), "==", 0), (len(updated), "==", 1), (len(removed), "==", 0)])
        with test("assert the labelled alarm of the user was disabled and nothing else of it changed."):
            user = models.end.phone.User.find_one(phone_number=main_user.phone_number)
            test.subcases([
                (updated[0].user_id, "==", user.id),
                (updated[0].label, "==", wanted["label"]),
                (updated[0].enabled, "==", False),
                (models.changed_field_names("phone.Alarm", updated[0].id), "==", {"enabled"}),
            ])
        """,
    ),
    Scenario(
        id="made04",
        split="dev",
        difficulty=2,
        apps=("phone",),
        variants=lambda plan: first_variants(_text_message(plan)),
        solution="""
        token = login("phone")
        found = apis.phone.search_contacts(relationship=wanted["relationship"], access_token=token)
        number = found[0]["phone_number"]
        apis.phone.send_text_message(phone_number=number, message=wanted["message"], access_token=token)
        """,
        checks="""
        with test("assert only text messages changed."):
            test.case(models.changed_model_names(), "==", {"phone.GlobalTextMessage", "phone.UserTextMessage"})
        added, updated, removed = models.changed_records("phone.GlobalTextMessage")
        with test("assert one message was sent."):
            test.subcases([(len(added), "==", 1), (len(updated), "==", 0), (len(removed), "==", 0)])
        with test("assert the message went from the user to the right contact as asked."):
            sender = models.end.phone.User.find_one(phone_number=main_user.phone_number)
            receiver = models.end.phone.User.find_one(phone_number=wanted["phone_number"])
            test.subcases([
                (added[0].sender_id, "==", sender.id),
                (added[0].receiver_id, "==", receiver.id),
                (added[0].message, "==", wanted["message"]),
            ])
        """,
    ),
    Scenario(
        id="made10",
        split="dev",
        difficulty=2,
        apps=("todoist",),
        variants=lambda plan: first_variants(_urgent_chores(plan)),
        solution="""
        token = login("todoist")
        projects = pages(apis.todoist.show_projects, access_token=token)
        project = next(project for project in projects if project["name"] == wanted["project"])
        tasks = apis.todoist.show_tasks(
            project_id=project["project_id"], priority="high", is_completed=False, access_token=token
        )
        for task in tasks["no_section_tasks"]:
            apis.todoist.update_task(task_id=task["task_id"], is_completed=True, access_token=token)
        """,
        checks="""
        with test("assert only tasks changed."):
            test.case(models.changed_model_names(ignore=["todoist.Notification"]), "==", {"todoist.Task"})
        added, updated, removed = models.changed_records("todoist.Task")
        with test("assert tasks were updated, none added or removed."):
            test.subcases([(len(added), "==", 0), (len(updated), ">", 0), (len(removed), "==", 0)])
        with test("assert exactly the open tasks of high priority were completed."):
            test.subcases([
                (sorted(task.title for task in updated), "==", wanted["titles"]),
                (all(task.is_completed for task in updated), "==", True),
            ])
        with test("assert the tasks belong to the user's project."):
            user = models.end.todoist.User.find_one(email=main_user.email)
            project = models.end.todoist.Project.find_one(user_id=user.id, name=wanted["project"])
            test.case({task.project_id for task in updated}, "==", {project.id})
        """,
    ),
)
