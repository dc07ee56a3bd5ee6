"""From a run to a task: the path that carries a call, the words that say it, the question that an answer gives."""

from __future__ import annotations

import random

from support.shop import BASKETS, SIGNED_IN, TOOLS, made

from agents.evidence import call_of
from agents.scripted.appworld.drafts import _task, name_beside, path_to, question, said_text

TOKEN = {"access_token": "t-1"}
UNRELATED = made(4, "supervisor.show_profile", {"email": "ada@example.com"})
DELETE = made(5, "shop.delete_basket", {"message": "Deleted."}, {"basket_id": 8, **TOKEN}, changed=True)
CREATE = made(6, "shop.create_basket", {"message": "Made.", "basket_id": 9}, {"title": "Garden", **TOKEN}, changed=True)
DELETE_NEW = made(7, "shop.delete_basket", {"message": "Deleted."}, {"basket_id": 9, **TOKEN}, changed=True)
RUN = (*SIGNED_IN, BASKETS, UNRELATED, DELETE, CREATE, DELETE_NEW)


def names(place: int) -> list[str]:
    return [call_of(one).name for one in path_to(RUN, place).interactions]


def text(place: int) -> str | None:
    return said_text([path_to(RUN, place)], TOOLS, RUN, random.Random(3))


def test_a_path_holds_what_the_call_was_given_and_nothing_else() -> None:
    signing_in = ["supervisor.show_profile", "supervisor.show_account_passwords", "shop.login"]
    assert names(5) == [*signing_in, "shop.show_baskets", "shop.delete_basket"]
    assert names(6) == [*signing_in, "shop.create_basket"]
    assert names(7) == [*signing_in, "shop.create_basket", "shop.delete_basket"]
    assert names(0) == ["supervisor.show_profile"]


def test_an_id_is_said_by_the_name_beside_it_and_sign_ins_are_not_said() -> None:
    said = text(5)
    assert said is not None
    assert said.endswith('delete a basket (the basket with title "Weekly")')
    assert "t-1" not in said


def test_changes_on_the_way_are_said_and_what_they_made_is_the_new_one() -> None:
    said = text(7)
    assert said is not None
    assert 'create a new basket (title "Garden")' in said
    assert said.endswith("delete a basket (the new basket)")


def test_a_name_that_two_have_says_nothing() -> None:
    record = {"basket_id": 1, "title": "Party", "label": "bb"}
    twins = [record, {"basket_id": 2, "title": "Party", "label": "bb"}]
    assert name_beside(record, twins) is None
    assert name_beside(record, [record]) == ("title", "Party")
    nameless = made(3, "shop.show_baskets", [{"basket_id": 8, "size": 2}], TOKEN)
    run = (*SIGNED_IN, nameless, DELETE)
    assert said_text([path_to(run, 4)], TOOLS, run, random.Random(0)) is None


def test_a_question_asks_for_a_text_of_one_object() -> None:
    asked = {question(BASKETS, random.Random(seed)) for seed in range(20)}
    assert asked == {
        ('answer with the colour of the one with title "Party"', "red"),
        ('answer with the colour of the one with title "Weekly"', "green"),
    }


def test_what_was_said_or_numbers_or_tokens_are_not_asked_for() -> None:
    given = made(3, "shop.search", [{"title": "Party"}], {"query": "Party"})
    assert question(given, random.Random(0)) is None
    assert question(SIGNED_IN[2], random.Random(0)) is None
    assert question(made(3, "shop.count", {"count": 4}), random.Random(0)) is None


def test_the_end_of_a_task_carries_the_answer_if_there_is_one() -> None:
    for place, answers in ((3, ({"answer": "red"}, {"answer": "green"})), (5, ({},))):
        task = _task(RUN, (place,), TOOLS, random.Random(0))
        assert task is not None
        assert task[1][-1].name == "supervisor.complete_task"
        assert task[1][-1].arguments in answers
