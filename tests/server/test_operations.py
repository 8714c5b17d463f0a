"""What each group of operations does: the calls of a space, over HTTP, without loss."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.server import Limits
from keepstate.server.operations.documents import merge_patch
from keepstate.server.operations.values import read_value, show
from tests.server.conftest import served

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

        async with asyncio.timeout(10):
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


# ---- approvals, conversations, histories


async def test_an_approval_is_answered_by_a_key_as_itself_and_wakes_its_task() -> None:
    async with served() as door:
        asker = await door.caller("agent", ["write", "read"])
        person = await door.caller("web", ["answer"])
        asked = await ok(
            await asker.post(
                "/v1/approvals",
                params=RUN,
                json={"question": "Pay?", "id": "q", "subject": {"n": 1}, "to": ["web/ann"]},
            )
        )
        body = {"id": "q", "value": True, "saw": asked["digest"], "note": "fine"}

        as_bob = await person.post(
            "/v1/approval/answer", params=RUN, json=body, headers={"On-Behalf-Of": "bob"}
        )
        unseen = await person.post(
            "/v1/approval/answer", params=RUN, json={**body, "saw": "x"}, headers={"On-Behalf-Of": "ann"}
        )
        pending = (await ok(await asker.get("/v1/approvals", params=RUN)))["items"]
        answered = await ok(
            await person.post("/v1/approval/answer", params=RUN, json=body, headers={"On-Behalf-Of": "ann"})
        )
        other = await person.post(
            "/v1/approval/answer", params=RUN, json={**body, "value": False}, headers={"On-Behalf-Of": "ann"}
        )
        log = (await ok(await asker.get("/v1/approval/log", params={**RUN, "id": "q"})))["items"]
        audited = await door.keys.audited()

        assert asked["asked_by"] == "agent" and [each["id"] for each in pending] == ["q"]
        assert (problem(as_bob)[0], unseen.status_code >= 400, problem(other)) == (
            403, True, (409, "approval_closed")
        )  # fmt: skip
        assert (answered["state"], answered["closed_by"], answered["answer"]) == ("answered", "web/ann", True)
        assert [(line["kind"], line["by"]) for line in log] == [("asked", "agent"), ("answered", "web/ann")]
        assert [(event["operation"], event["author"]) for event in audited if event["what"] == "called"] == [
            ("answer", "web/bob"), *[("answer", "web/ann")] * 3
        ]  # fmt: skip


async def test_a_conversation_is_read_and_appended_to_once() -> None:
    async with served() as door:
        client, where = await door.caller(), {"session": "talk/1"}
        message = {"message": {"role": "user", "content": "hello"}, "id": "m1", "meta": {"from": "web"}}

        numbers = [
            await ok(await client.post("/v1/conversation", params=where, json=message)) for _ in range(2)
        ]
        await ok(
            await client.post(
                "/v1/conversation", params=where, json={"message": {"role": "assistant", "content": "hi"}}
            )
        )
        page = await ok(await client.get("/v1/conversation", params={**where, "limit": 1}))
        earlier = await ok(await client.get("/v1/conversation", params={**where, "before": page["previous"]}))
        stopped = await ok(await client.post("/v1/conversation/stop", params=where))
        malformed = await client.post("/v1/conversation", params=where, json={"message": {"role": 1}})
        under = await door.caller("elsewhere", under="session/talk/2")

        assert numbers[0] == numbers[1]
        assert [entry["message"]["content"] for entry in earlier["items"] + page["items"]] == ["hello", "hi"]
        assert (earlier["items"][0]["author"], earlier["items"][0]["meta"]) == ("ann", {"from": "web"})
        assert (stopped, problem(malformed)[0]) == ({"stopped": False}, 422)
        assert (await under.get("/v1/conversation", params=where)).status_code == 403


async def test_a_history_is_read_in_parts_compared_and_changed() -> None:
    async with served() as door:
        client, space = await door.caller(), door.ks.space("run/1", record=True)
        for step in range(3):
            await space.documents.put("plan", {"step": step, "notes": list(range(step + 1))})

        log = await ok(await client.get("/v1/history/log", params={**RUN, "limit": 2}))
        rest = await ok(await client.get("/v1/history/log", params={**RUN, "limit": 2, "after": log["next"]}))
        response = await client.get("/v1/history/state", params=RUN)
        state, tag = response.json(), response.headers["etag"]
        fresh = await client.get("/v1/history/state", params=RUN, headers={"If-None-Match": tag})
        notes = await ok(
            await client.get("/v1/history/state", params={**RUN, "path": '["plan", "notes"]', "limit": 2})
        )
        value = await ok(
            await client.get("/v1/history/state", params={**RUN, "path": '["plan", "step"]', "ref": "main#2"})
        )
        part = await ok(
            await client.get("/v1/history/slice", params={**RUN, "path": '["plan", "notes"]', "start": 1})
        )
        diff = await ok(
            await client.get(
                "/v1/history/diff", params={**RUN, "a": "main~1", "b": "main", "path": '["plan"]'}
            )
        )
        blame = await ok(await client.get("/v1/history/blame", params={**RUN, "path": '["plan", "step"]'}))
        changes = await ok(
            await client.get("/v1/history/changes", params={**RUN, "path": '["plan", "step"]'})
        )
        branch = await ok(
            await client.post("/v1/history/branch", params=RUN, json={"name": "try", "at": "main#1"})
        )
        await ok(await client.post("/v1/history/tag", params=RUN, json={"name": "good", "at": "main#2"}))
        names = await ok(await client.get("/v1/history/references", params=RUN))
        back = await ok(
            await client.post("/v1/history/rollback", params=RUN, json={"to": "main#1", "message": "again"})
        )
        gone = await ok(await client.delete("/v1/history/branch", params={**RUN, "name": "try"}))
        wrong = [
            await client.get("/v1/history/state", params={**RUN, "path": "plan"}),
            await client.get("/v1/history/state", params={**RUN, "path": '{"a": 1}'}),
            await client.get("/v1/history/state", params={**RUN, "path": '["none"]'}),
            await client.get("/v1/history/commit", params={**RUN, "ref": "none"}),
            await client.get("/v1/history/blame", params={**RUN, "path": "[]"}),
        ]

        assert [row["number"] for row in log["items"] + rest["items"]] == [3, 2, 1] and rest["next"] is None
        assert (state["kind"], state["count"], tag) == ("dict", 1, f'"{log["items"][0]["id"]}"')
        assert state["items"] == [{"step": "plan", "value": None, "kind": "dict", "count": 2}]
        assert (fresh.status_code, response.headers["cache-control"]) == (304, "private, no-cache")
        assert (
            [each["value"] for each in notes["items"]] == [0, 1]
            and notes["count"] == 3
            and notes["next"] == 1
        )
        assert (value["kind"], value["value"], part["items"]) == ("value", 1, [1, 2])
        assert [(each["path"], each["kind"]) for each in diff["items"]] == [
            (["plan", "step"], "changed"), (["plan", "notes", 2], "added")
        ]  # fmt: skip
        assert (blame["commit"]["number"], len(changes["items"])) == (3, 3)
        assert branch["number"] == 1 and [each["name"] for each in names["tags"]] == ["good"]
        assert (back["author"], back["message"]) == ("ann", "again") and gone == {"existed": True}
        assert (await space.documents.get("plan"))["step"] == 0
        assert [problem(one) for one in wrong] == [
            (400, "malformed"), (422, "invalid"), (404, "not_found"), (404, "not_found"), (422, "invalid")
        ]  # fmt: skip


# ---- spaces, tenants, and the server itself


async def test_spaces_subjects_and_tenants_are_listed() -> None:
    async with served() as door:
        client, of_acme = await door.caller(), await door.caller("acme", ALL_OF_IT, tenant="acme")
        await ok(await of_acme.post("/v1/tasks", params=RUN, json={"payload": 1, "kind": "mail"}))
        await ok(await client.put("/v1/document", params={**RUN, "key": "k"}, json=1))
        await door.ks.tenant("acme").deliver()

        spaces = await ok(await client.get("/v1/spaces"))
        found = await ok(await of_acme.get("/v1/find", params={"kind": "queue"}))
        tenants = await ok(await client.get("/v1/tenants"))
        refused = await of_acme.get("/v1/tenants")
        space = await client.get("/v1/space", params=RUN)
        fresh = await client.get("/v1/space", params=RUN, headers={"If-None-Match": space.headers["etag"]})
        await ok(await client.put("/v1/document", params={**RUN, "key": "k"}, json=2))
        changed = await client.get("/v1/space", params=RUN, headers={"If-None-Match": space.headers["etag"]})
        size = await ok(await of_acme.get("/v1/tenant/size"))
        dropped = await ok(await client.delete("/v1/space", params=RUN))

        assert [row["name"] for row in spaces["items"]] == ["run/1"]
        assert [(row["space"], row["id"], row["state"]) for row in found["items"]] == [
            ("run/1", "mail", "ready")
        ]
        assert (tenants["items"], problem(refused)) == (["acme"], (403, "not_allowed"))
        assert (space.json()["entries"], fresh.status_code, changed.status_code) == (1, 304, 200)
        assert size["entries"] > 0 and dropped == {"existed": True}
        assert "dropSpace" in [event.get("operation") for event in await door.keys.audited()]


ALL_OF_IT = ("read", "write", "admin")


async def test_the_server_says_how_it_is_and_counts_without_names() -> None:
    async with served() as door:
        client, stranger = await door.caller(), door.client()
        await client.put("/v1/document", params={"space": "secret-space", "key": "k"}, json=1)

        health, ready = await stranger.get("/healthz"), await stranger.get("/readyz")
        document, metrics = await stranger.get("/openapi.json"), await client.get("/metrics")
        hidden = await stranger.get("/metrics")
        door.app.is_draining = True
        draining, still = await stranger.get("/readyz"), await client.get("/v1/self")

        assert (health.status_code, ready.status_code, draining.status_code, still.status_code) == (
            200,
            200,
            503,
            200,
        )
        assert document.json()["openapi"] == "3.1.0"
        assert 'keepstate_requests_total{operation="putDocument",status="200"} 1' in metrics.text
        assert "secret-space" not in metrics.text and "ann" not in metrics.text
        assert problem(hidden) == (401, "unauthenticated")


async def test_a_key_has_a_rate() -> None:
    async with served(limits=Limits(rate=1_000)) as door:
        slow, fast = await door.caller("slow", rate=0.5), await door.caller("fast")

        answers = [await slow.get("/v1/self") for _ in range(3)]
        others = [await fast.get("/v1/self") for _ in range(20)]

        assert [one.status_code for one in answers] == [200, 429, 429]
        assert (
            problem(answers[1]) == (429, "too_many_requests") and int(answers[1].headers["retry-after"]) >= 1
        )
        assert {one.status_code for one in others} == {200}


async def test_the_author_of_a_write_is_the_key_and_the_person_it_acts_for() -> None:
    async with served() as door:
        client = await door.caller("web")

        await ok(await client.post("/v1/events", params=RUN, json={"events": [1]}))
        await ok(
            await client.post(
                "/v1/events", params=RUN, json={"events": [2]}, headers={"On-Behalf-Of": "J%C3%BCrgen"}
            )
        )
        wrong = await client.get("/v1/self", headers={"On-Behalf-Of": "a%0Ab"})

        events = await door.ks.space("run/1").events.read()
        assert [event.author for event in events] == ["web", "web/Jürgen"]
        assert problem(wrong) == (422, "invalid")
