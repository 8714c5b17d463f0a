"""What each group of operations does: the calls of a space, over HTTP, without loss."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keepstate
from keepstate._runner import TaskRunner
from keepstate.engine.space.space import Space
from keepstate.server.operations import events as events_of
from keepstate.server.operations.documents import merge_patch
from keepstate.server.operations.values import read_value, show
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Outcome
from tests.server.conftest import sent_events, served, some

RUN = {"space": "run/1"}
PATCH = {"Content-Type": "application/merge-patch+json"}


async def ok(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def problem(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    found = response.json()
    assert found["status"] == response.status_code and found["type"].endswith(f":{found['code']}")
    return response.status_code, found["code"]


# ---- documents


async def test_a_document_is_written_read_changed_and_deleted_under_conditions() -> None:
    async with served() as door:
        client, where = await door.caller(), {**RUN, "key": "plan"}

        created = await client.put(
            "/v1/document", params=where, json={"a": 1}, headers={"If-None-Match": "*"}
        )
        again = await client.put("/v1/document", params=where, json={"a": 2}, headers={"If-None-Match": "*"})
        tag = created.headers["etag"]
        read = await client.get("/v1/document", params=where)
        fresh = await client.get("/v1/document", params=where, headers={"If-None-Match": f'"x", W/{tag}'})
        changed = await client.patch(
            "/v1/document",
            params=where,
            content=b'{"b": {"c": 1}, "a": null}',
            headers={**PATCH, "If-Match": tag},
        )
        stale = await client.put("/v1/document", params=where, json=3, headers={"If-Match": tag})
        weak = await client.put(
            "/v1/document", params=where, json=3, headers={"If-Match": f"W/{changed.headers['etag']}"}
        )
        listed = await ok(await client.get("/v1/documents", params=RUN))
        late = [
            await client.patch(
                "/v1/document", params=where, content=b'{"late": 1}', headers={**PATCH, "If-Match": tag}
            ),
            await client.delete("/v1/document", params=where, headers={"If-Match": tag}),
        ]
        any_tag = await client.delete(
            "/v1/document", params=where, headers={"If-Match": f'"x", {changed.headers["etag"]}'}
        )
        absent = await client.put("/v1/document", params=where, json=3, headers={"If-Match": "*"})

        assert (created.status_code, again.status_code) == (200, 412)
        assert again.headers["etag"] == tag == f'"{created.json()["version"]}"'
        assert read.json()["value"] == {"a": 1} and read.headers["cache-control"] == "private, no-cache"
        assert (fresh.status_code, fresh.content, fresh.headers["etag"]) == (304, b"", tag)
        assert (changed.status_code, problem(stale), problem(weak)) == (
            200, (412, "precondition_failed"), (412, "precondition_failed")
        )  # fmt: skip
        assert [problem(each) for each in late] == [(412, "precondition_failed")] * 2
        assert [row["value"] for row in listed["items"]] == [{"b": {"c": 1}}]
        assert (any_tag.json(), problem(absent)) == ({"existed": True}, (412, "precondition_failed"))


async def test_of_writers_with_one_tag_one_wins() -> None:
    async with served() as door:
        client, where = await door.caller(), {**RUN, "key": "plan"}
        tag = (await client.put("/v1/document", params=where, json=0)).headers["etag"]

        answers = await asyncio.gather(
            *(
                client.put("/v1/document", params=where, json=each, headers={"If-Match": tag})
                for each in range(1, 9)
            )
        )

        won = [each for each, answer in enumerate(answers, 1) if answer.status_code == 200]
        assert sorted(answer.status_code for answer in answers) == [200] + [412] * 7
        assert (await client.get("/v1/document", params=where)).json()["value"] == won[0]


async def test_patches_at_once_lose_nothing() -> None:
    async with served() as door:
        client, where = await door.caller(), {**RUN, "key": "plan"}
        await client.put("/v1/document", params=where, json={})

        answers = await asyncio.gather(
            *(
                client.patch("/v1/document", params=where, content=b'{"%d": 1}' % each, headers=PATCH)
                for each in range(8)
            )
        )

        assert {answer.status_code for answer in answers} == {200}
        value = (await client.get("/v1/document", params=where)).json()["value"]
        assert value == {str(each): 1 for each in range(8)}


VALUES = (
    (1, [2, {"a": {3}}]),
    {1: "one", ("a", 2): b"\x00\xff"},
    {"@type": "mine"},
    -(1 << 80),
    (1 << 53) + 1,
    math.inf,
    1.0,
    datetime(2026, 11, 28, 1, 2, 3, 4, tzinfo=UTC),
    date(2026, 1, 2),
    timedelta(days=1, microseconds=3),
    Decimal("1.10"),
    UUID(int=5),
    frozenset({1}),
    1 + 2j,
    "\ud800",
)


async def test_values_without_a_json_type_go_out_and_come_back_the_same() -> None:
    async with served() as door:
        client, space = await door.caller(), door.ks.space("run/1")
        for number, value in enumerate(VALUES):
            await space.documents.put(f"in/{number}", value)

        for number in range(len(VALUES)):
            shown = (await client.get("/v1/document", params={**RUN, "key": f"in/{number}"})).json()["value"]
            await ok(await client.put("/v1/document", params={**RUN, "key": f"out/{number}"}, json=shown))

        for number, value in enumerate(VALUES):
            back = await space.documents.get(f"out/{number}")
            assert (type(back), back) == (type(value), value)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.uuids()
    | st.tuples(st.integers())
)


@given(
    st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_value_survives_its_form(value: Any) -> None:
    import msgspec

    text = msgspec.json.encode(show(value))

    back = read_value(text)

    assert (back, repr(back)) == (value, repr(value))
    numbers = [each for each in _numbers(msgspec.json.decode(text)) if isinstance(each, int)]
    assert all(-(1 << 53) < each < 1 << 53 for each in numbers)


def _numbers(form: Any) -> list[Any]:
    if isinstance(form, dict):
        return [each for part in form.values() for each in _numbers(part)]
    if isinstance(form, list):
        return [each for part in form for each in _numbers(part)]
    return [form] if isinstance(form, int | float) and not isinstance(form, bool) else []


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_is_that_of_the_standard(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


# ---- pages and cursors


async def test_pages_continue_and_a_cursor_is_judged_when_it_comes_back() -> None:
    async with served() as door:
        client = await door.caller()
        for number in range(5):
            await door.ks.space("run/1").documents.put(f"k/{number}", number)
            await door.ks.space(f"run/{number}").documents.put("k", number)

        first = await ok(await client.get("/v1/documents", params={**RUN, "prefix": "k/", "limit": 2}))
        second = await ok(
            await client.get(
                "/v1/documents", params={**RUN, "prefix": "k/", "limit": 9, "after": first["next"]}
            )
        )
        wrong = [
            await client.get("/v1/documents", params={**RUN, "after": first["next"]}),
            await client.get(
                "/v1/documents", params={"space": "run/2", "prefix": "k/", "after": first["next"]}
            ),
            await client.get(
                "/v1/documents", params={**RUN, "prefix": "k/", "after": first["next"][:-2] + "AA"}
            ),
            await client.get("/v1/events", params={**RUN, "after": first["next"]}),
        ]

        assert [row["key"] for row in first["items"] + second["items"]] == [f"k/{n}" for n in range(5)]
        assert second["next"] is None
        assert {problem(one) for one in wrong} == {(422, "invalid")}


async def test_a_forged_cursor_leads_to_no_other_space() -> None:
    async with served() as door:
        for name in ("a", "b/1", "b/2", "c"):
            await door.ks.space(name).documents.put("k", 1)
        client = await door.caller(under="b")

        rows = [
            (await client.get("/v1/spaces", params={"after": after})).json()["items"]
            for after in ("0", "a", "b/1", "b/2", "bz", "c")
        ]

        assert all(row["name"].startswith("b/") for page in rows for row in page)
        assert [row["name"] for row in rows[0]] == ["b/1", "b/2"]


# ---- filters of events


class Overtaken(MemoryStore):
    """A store in which another writer follows the first write of a document at once."""

    other: Space | None = None

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        outcomes = await super().apply(batches)
        if self.other is not None and any(batch.space == "run/1" for batch in batches):
            other, self.other = self.other, None
            await other.documents.put("k", "theirs")
        return outcomes


async def test_a_write_that_was_overtaken_gets_no_tag_of_the_other_write() -> None:
    store: Any = Overtaken(runner=TaskRunner())
    twin = await store.twin(TaskRunner()).open()
    async with served(await store.open()) as door:
        client, where = await door.caller(), {**RUN, "key": "k"}
        store.other = keepstate.open(twin).space("run/1")

        written = await client.put("/v1/document", params=where, json="mine")
        read = await client.get("/v1/document", params=where)

        assert written.json() == {"key": "k", "version": None} and "etag" not in written.headers
        assert read.json()["value"] == "theirs"
    await twin.close()
    await store.close()


async def test_events_are_filtered_by_type_author_and_text_page_by_page() -> None:
    async with served() as door:
        client, events = await door.caller(), door.ks.space("run/1", author="agent").events
        await events.append({"n": 1, "to": "Århus"}, {"n": 2, "to": "BERGEN"}, type="quoted")
        await events.append({"n": 3, "to": "Bergen", "id": 12_345}, type="booked")
        await door.ks.space("run/1", author="bob").events.append({"n": 4, "of": ["bergen"]}, type="quoted")
        await events.append({"n": 5})

        async def found(**filters: Any) -> list[int]:
            page = await ok(await client.get("/v1/events", params={**RUN, **filters}))
            assert page["next"] is None and page["scanned"] == 5
            return [each["data"]["n"] for each in page["items"]]

        assert (await found(type="quoted"), await found(author="bob")) == ([1, 2, 4], [4])
        assert (await found(type="quoted@1"), await found(type="quoted@2")) == ([1, 2, 4], [])
        assert (await found(text="bergen"), await found(text="århus")) == ([2, 3, 4], [1])
        assert (await found(text="2345"), await found(type="quote"), await found(author="Bob")) == (
            [3],
            [],
            [],
        )
        assert await found(text="bergen", type="quoted", author="agent") == [2]
        for reverse in (False, True):
            cursor, seen = "before" if reverse else "after", list[int]()
            query: dict[str, Any] = {**RUN, "text": "bergen", "limit": 1, "reverse": str(reverse).lower()}
            for _ in range(3):
                page = await ok(await client.get("/v1/events", params=query))
                seen += [each["data"]["n"] for each in page["items"]]
                query[cursor] = page["next"]
            assert seen == ([4, 3, 2] if reverse else [2, 3, 4])
            last = await ok(await client.get("/v1/events", params=query))
            assert last == {"items": [], "next": None, "scanned": 1}


async def test_a_request_with_filters_reads_so_many_events_and_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events_of, "_SCANNED_AT_ONCE", 40)
    monkeypatch.setattr(events_of, "_PAGE", 20)
    async with served() as door:
        client, events = await door.caller(), door.ks.space("run/1").events
        await events.append(*({"n": n} for n in range(99)), type="step")
        await events.append({"n": 99}, type="rare")

        for reverse, expected in ((False, [99]), (True, [90, 80, 70, 60, 50, 40, 30, 20, 10, 0])):
            query = (
                {**RUN, "type": "step", "text": "0}", "reverse": "true"}
                if reverse
                else {**RUN, "type": "rare"}
            )
            pages = list[Any]()
            while not pages or pages[-1]["next"] is not None:
                pages.append(await ok(await client.get("/v1/events", params=query)))
                query["before" if reverse else "after"] = pages[-1]["next"]

            assert [each["data"]["n"] for page in pages for each in page["items"]] == expected
            assert [page["scanned"] for page in pages] == [40, 40, 20]


async def test_filtered_events_lie_between_two_positions_in_either_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events_of, "_PAGE", 20)
    async with served() as door:
        client, events = await door.caller(), door.ks.space("run/1").events
        await events.append(*({"n": n} for n in range(99)), type="step")
        listed = (await ok(await client.get("/v1/events", params=RUN)))["items"]
        ends = {"after": listed[9]["position"], "before": listed[70]["position"]}

        for reverse in ("false", "true"):
            query = {**RUN, **ends, "type": "step", "reverse": reverse}
            page = await ok(await client.get("/v1/events", params=query))

            found = [each["data"]["n"] for each in page["items"]]
            assert sorted(found) == list(range(10, 70)) and page["next"] is None


async def test_a_followed_stream_is_filtered_too() -> None:
    async with served(is_live=True) as door:
        client, events = await door.caller(), door.ks.space("run/1").events
        await events.append({"n": 1, "to": "x"}, type="a")
        query = {**RUN, "type": "b", "text": "x"}
        async with client.stream("GET", "/v1/events/follow", params=query) as response:
            sent = sent_events(response)
            await events.append({"n": 2}, type="b")
            await events.append({"n": 3, "to": "x"}, type="a")
            await events.append({"n": 4, "to": "X"}, type="b")

            assert [each.data["data"]["n"] for each in await some(sent, 1)] == [4]


async def test_a_task_tells_the_trace_of_its_put() -> None:
    async with served() as door:
        client, traceparent = await door.caller(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await door.ks.space("run/1").by(meta={"traceparent": traceparent}).queue.put(1, id="traced")
        await door.ks.space("run/1").queue.put(1, id="plain")

        found = [
            (await ok(await client.get("/v1/task", params={**RUN, "id": id})))["traceparent"]
            for id in ("traced", "plain")
        ]

        assert found == [traceparent, None]


# ---- events, tasks, batches: once


async def test_a_request_with_an_idempotency_key_is_applied_once() -> None:
    async with served() as door:
        client, space = await door.caller(), door.ks.space("run/1")
        other = await door.caller("bob")
        head = {"Idempotency-Key": "k1"}

        answers = await asyncio.gather(
            *(client.post("/v1/events", params=RUN, json={"events": [1, 2]}, headers=head) for _ in range(5))
        )
        another_body = await client.post("/v1/events", params=RUN, json={"events": [3]}, headers=head)
        task = [
            await ok(await client.post("/v1/tasks", params=RUN, json={"payload": 1}, headers=head))
            for _ in range(2)
        ]
        by_other = await ok(await other.post("/v1/events", params=RUN, json={"events": [9]}, headers=head))
        elsewhere = await ok(
            await client.post("/v1/events", params={"space": "run/2"}, json={"events": [8]}, headers=head)
        )

        assert len({answer.content for answer in answers}) == 1
        assert answers[0].json() == {"count": 2, "revision": 1}
        assert problem(another_body) == (422, "idempotency_key_reused")
        assert task[0] == task[1] and task[0]["added"] and task[0]["id"] != "k1"
        assert (by_other["count"], elsewhere["revision"]) == (1, 1)
        assert [event.data for event in await space.events.read()] == [1, 2, 9]
        assert (await space.queue.counts())["ready"] == 1


async def test_an_idempotency_key_belongs_to_what_it_is_sent_with() -> None:
    async with served() as door:
        client = await door.caller()

        wrong = [
            await client.put(
                "/v1/document", params={**RUN, "key": "k"}, json=1, headers={"Idempotency-Key": "k"}
            ),
            await client.post(
                "/v1/events", params=RUN, json={"events": [1]}, headers={"Idempotency-Key": "k" * 256}
            ),
            await client.post(
                "/v1/events", params=RUN, json={"events": [1]}, headers={"Idempotency-Key": '""'}
            ),
        ]

        assert {problem(one) for one in wrong} == {(422, "invalid")}


async def test_a_worker_without_state_claims_and_ends_tasks() -> None:
    async with served() as door:
        client = await door.caller()
        for number in range(4):
            await ok(await client.post("/v1/tasks", params=RUN, json={"payload": number, "id": f"t{number}"}))

        claimed = (
            await ok(
                await client.post(
                    "/v1/tasks/claim", params=RUN, json={"lease_s": 60, "count": 4, "worker": "w"}
                )
            )
        )["items"]
        held = [{"id": task["id"], "token": task["token"]} for task in claimed]
        await ok(
            await client.post(
                "/v1/task/heartbeat", params=RUN, json={**held[0], "lease_s": 60, "progress": 0.5}
            )
        )
        progress = (await ok(await client.get("/v1/task", params={**RUN, "id": "t0"})))["progress"]
        await ok(await client.post("/v1/task/complete", params=RUN, json={**held[0], "result": {"n": 1}}))
        twice = await client.post("/v1/task/complete", params=RUN, json={**held[0], "result": {"n": 1}})
        await ok(
            await client.post("/v1/task/fail", params=RUN, json={**held[1], "error": "no", "is_final": True})
        )
        await ok(await client.post("/v1/task/release", params=RUN, json=held[2]))
        lost = await client.post("/v1/task/complete", params=RUN, json={"id": "t3", "token": 1})
        result = await ok(await client.get("/v1/task/result", params={**RUN, "id": "t0"}))
        failed = await client.get("/v1/task/result", params={**RUN, "id": "t1"})
        attempts = (await ok(await client.get("/v1/task/attempts", params={**RUN, "id": "t1"})))["items"]
        counts = (await ok(await client.get("/v1/tasks/counts", params=RUN)))["counts"]
        requeued = await ok(await client.post("/v1/tasks/requeue", params=RUN, json={"ids": ["t1"]}))
        cancelled = await ok(
            await client.post("/v1/task/cancel", params=RUN, json={"id": "t1", "reason": "late"})
        )
        listed = (await ok(await client.get("/v1/tasks", params={**RUN, "state": "cancelled"})))["items"]

        assert [(task["payload"], task["worker"]) for task in claimed] == [(n, "ann/w") for n in range(4)]
        assert (progress, twice.status_code, result["result"]) == (0.5, 200, {"n": 1})
        assert (problem(lost), problem(failed)) == ((409, "lease_lost"), (409, "task_failed"))
        assert attempts[0]["error"] == "no"
        assert (counts["done"], counts["dead"], counts["ready"], counts["claimed"]) == (1, 1, 1, 1)
        assert (requeued["count"], cancelled["existed"]) == (1, True)
        assert [(task["id"], task["cancelled_by"], task["error"]) for task in listed] == [
            ("t1", "ann", "late")
        ]


async def test_a_claim_waits_for_a_task() -> None:
    async with served() as door:
        client = await door.caller()
        waiting = asyncio.create_task(
            client.post("/v1/tasks/claim", params=RUN, json={"lease_s": 60, "wait_s": 15})
        )
        await asyncio.sleep(0.3)

        await door.ks.space("run/1").queue.put("late")

        async with asyncio.timeout(60):
            assert [task["payload"] for task in (await ok(await waiting))["items"]] == ["late"]


async def test_a_batch_applies_as_a_whole_or_not_at_all() -> None:
    async with served() as door:
        client, space = await door.caller(), door.ks.space("run/1")
        await space.documents.put("plan", {"a": 1})
        version = (await client.get("/v1/document", params={**RUN, "key": "plan"})).json()["version"]
        parts = [
            {"do": "patch", "key": "plan", "patch": {"b": 2}, "if_version": version},
            {"do": "put", "key": "new", "value": {"@type": "tuple", "items": [1]}, "if_version": ""},
            {"do": "append", "events": ["happened"]},
            {"do": "put_task", "payload": 1, "id": "t"},
            {"do": "delete", "key": "none"},
        ]
        head = {"Idempotency-Key": "b1"}

        applied = [
            await ok(await client.post("/v1/batch", params=RUN, json={"operations": parts}, headers=head))
            for _ in range(2)
        ]
        stale = await client.post(
            "/v1/batch",
            params=RUN,
            json={
                "operations": [
                    {"do": "append", "events": [2]},
                    {"do": "put", "key": "plan", "value": 1, "if_version": version},
                ]
            },
        )
        there = await client.post(
            "/v1/batch",
            params=RUN,
            json={"operations": [{"do": "put", "key": "new", "value": 1, "if_version": ""}]},
        )

        assert applied[0] == applied[1]
        assert applied[0]["results"][3]["id"] == "t" and applied[0]["results"][4]["existed"] is False
        assert (problem(stale)[0], problem(there)[0]) == (412, 412)
        assert await space.documents.get("plan") == {"a": 1, "b": 2}
        assert await space.documents.get("new") == (1,)
        assert [event.data for event in await space.events.read()] == ["happened"]
        assert (await space.queue.counts())["ready"] == 1


async def test_leases_are_proven_by_name_and_token_and_fence_a_batch() -> None:
    async with served() as door:
        client, other = await door.caller(), await door.caller("bob")
        put = {"operations": [{"do": "put", "key": "k", "value": 1}]}

        lease = await ok(await client.post("/v1/leases/acquire", params=RUN, json={"name": "l", "ttl_s": 60}))
        taken = await other.post("/v1/leases/acquire", params=RUN, json={"name": "l", "ttl_s": 60})
        proof = {"name": "l", "token": lease["token"]}
        await ok(await client.post("/v1/leases/renew", params=RUN, json={**proof, "ttl_s": 90}))
        listed = (await ok(await client.get("/v1/leases", params=RUN)))["items"]
        fenced = await client.post("/v1/batch", params=RUN, json={**put, "lease": proof})
        released = await ok(await client.post("/v1/leases/release", params=RUN, json=proof))
        lost = await client.post("/v1/batch", params=RUN, json={**put, "lease": proof})
        again = await ok(await client.post("/v1/leases/release", params=RUN, json=proof))

        assert problem(taken) == (409, "conflict")
        assert [(row["name"], row["holder"]) for row in listed] == [("l", "ann")] and "token" not in listed[0]
        assert (fenced.status_code, problem(lost)) == (200, (409, "lease_lost"))
        assert (released, again) == ({"was_held": True}, {"was_held": False})
