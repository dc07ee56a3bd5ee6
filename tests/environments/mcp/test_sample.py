"""Samples of records: records that name one another, small, drawn by a seed, and each as the values have it."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from environments.mcp.sample import LONGEST_SAMPLE, LONGEST_TEXT, samples

DAYS = [f"2026-05-{day:02}" for day in range(1, 31)]
SHOP = {
    "shop": {
        "people": {
            f"person_{n}": {"email": f"{n}@example.com", "orders": [f"order_{n}", f"order_{n + 20}"]} for n in range(20)
        },
        "orders": {
            f"order_{n}": {"person": f"person_{n % 20}", "goods": [{"sku": f"sku-{n % 7}", "day": DAYS[n % 30]}]}
            for n in range(40)
        },
        "goods": {
            f"sku-{n}": {
                "label": f"lamp {n}",
                "story": "x" * (LONGEST_TEXT + 1),
                "stock": {d: {"left": n, "price": 12.5, "open": True} for d in DAYS},
            }
            for n in range(7)
        },
    },
    "version": "7.1",
}
GRAPH = [
    *({"kind": "node", "name": name, "facts": [f"{name} is here"]} for name in ("Mira", "Tom", "Ann", "Zoe")),
    {"kind": "edge", "from": "Mira", "to": "Tom"},
    {"kind": "edge", "from": "Mira", "to": "Ann"},
    {"kind": "edge", "from": "Ann", "to": "Tom"},
]


def test_a_sample_has_records_that_name_one_another_at_their_places():
    found = samples({"shop.json": SHOP}, 60, 0)
    assert len(found) > 50, "people and orders mention others: goods begin none"
    for sample in found:
        (shop,) = sample.values()
        assert shop.keys() == {"shop"}
        people, orders, goods = (shop["shop"][kind] for kind in ("people", "orders", "goods"))
        assert len(orders) >= 2
        assert all(SHOP["shop"]["orders"][name] == order for name, order in orders.items())
        assert any(order["person"] in people for order in orders.values())
        assert any(one["sku"] in goods for order in orders.values() for one in order["goods"])


def test_of_a_long_record_what_the_others_name_is_kept_and_no_long_text():
    days = set()
    for sample in samples({"shop.json": SHOP}, 60, 0):
        shop = sample["shop.json"]["shop"]
        ordered = {(one["sku"], one["day"]) for order in shop["orders"].values() for one in order["goods"]}
        for sku, good in shop["goods"].items():
            assert good["label"] == SHOP["shop"]["goods"][sku]["label"]
            assert good.keys() == {"label", "stock"}
            assert len(good["stock"]) == 2
            days |= {(sku, day) in ordered for day in good["stock"]}
    assert days == {True, False}, "two are kept where one is named"
    first = next(iter(samples({"shop.json": SHOP}, 1, 0)[0]["shop.json"]["shop"]["goods"].items()))
    assert any((first[0], day) for day in first[1]["stock"])


def test_records_of_several_kinds_in_one_list_are_told_apart():
    found = samples({"graph": GRAPH}, 9, 0)
    assert found, "each edge begins one"
    for sample in found:
        names = {one["name"] for one in sample["graph"] if one["kind"] == "node"}
        edges = [one for one in sample["graph"] if one["kind"] == "edge"]
        assert "Zoe" not in names
        assert {end for one in edges for end in (one["from"], one["to"])} == names == {"Mira", "Tom", "Ann"}


def test_equal_seeds_draw_equal_samples_and_other_seeds_others():
    assert samples({"a": SHOP}, 5, 3) == samples({"a": SHOP}, 5, 3)
    assert samples({"a": SHOP}, 5, 3) != samples({"a": SHOP}, 5, 4)
    assert len(samples({"a": SHOP}, 5, 3)) == 5


def test_without_records_there_is_no_sample():
    plain = {"name": {"first": "Ann"}, "amounts": {"a": 1, "b": 2}, "one": {"x": {"y": 1}}, "words": ["tea", "milk"]}
    assert samples({"a": plain, "b": "text", "c": None, "d": [{"only": "one"}], "e": {}}, 5, 0) == []
    assert samples({"a": {"kinds": {"people": {"x": 1}, "orders": {"y": 2}}}}, 5, 0) == [], "they share no key"


def test_records_without_mentions_are_drawn_each_and_others_of_their_collection_with_them():
    two = {"a": [{"id": "tea", "left": 3}, {"id": "milk", "left": 4}]}
    assert sorted(map(json.dumps, samples(two, 5, 0))) == [
        json.dumps({"a": [one]}) for one in sorted(two["a"], key=json.dumps)
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5),
    max_leaves=40,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=4), JSON, max_size=3))
def test_whatever_the_values_are_samples_are_bounded(values):
    for sample in samples(values, 4, 0):
        assert len(json.dumps(sample, ensure_ascii=False)) <= LONGEST_SAMPLE


def test_no_depth_and_no_size_is_too_great():
    deep = []
    for _ in range(5000):
        deep = [deep]
    assert samples({"a": deep}, 3, 0) == []
    wide = {f"id-{n}": {"text": "x" * 2000, "next": f"id-{n + 1}"} for n in range(3000)}
    for sample in samples({"a": wide}, 3, 0):
        assert all(one.keys() == {"next"} for one in sample["a"].values())
