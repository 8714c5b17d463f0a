"""Approvals, conversations, histories, listings of spaces, and the server itself, over HTTP."""

from __future__ import annotations

from typing import Any

from keepstate.server import Limits
from keepstate.server.limits import Bucket
from keepstate.testing.clocks import ManualClock
from tests.server.conftest import ALL, served
from tests.server.test_operations import RUN, ok, problem

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


async def test_a_history_is_read_in_parts_and_compared() -> None:
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


async def test_a_history_is_branched_tagged_and_rolled_back() -> None:
    async with served() as door:
        client, space = await door.caller(), door.ks.space("run/1", record=True)
        for step in range(3):
            await space.documents.put("plan", {"step": step})

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

        assert branch["number"] == 1 and [each["name"] for each in names["tags"]] == ["good"]
        assert (back["author"], back["message"]) == ("ann", "again") and gone == {"existed": True}
        assert (await space.documents.get("plan"))["step"] == 0
        assert [problem(one) for one in wrong] == [
            (400, "malformed"), (422, "invalid"), (404, "not_found"), (404, "not_found"), (422, "invalid")
        ]  # fmt: skip


# ---- spaces, tenants, and the server itself


async def test_spaces_subjects_and_tenants_are_listed() -> None:
    async with served() as door:
        client, of_acme = await door.caller(), await door.caller("acme", ALL, tenant="acme")
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


def test_a_refused_request_does_not_bring_the_next_one_nearer() -> None:
    clock = ManualClock()
    bucket = Bucket(clock, 1)
    waits = [bucket.take() for _ in range(3)]
    for _ in range(3):
        clock.advance(250)
        waits.append(bucket.take())
    clock.advance(250)

    assert waits == [0, 0, 1, 0.75, 0.5, 0.25] and bucket.take() == 0


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


async def test_what_a_key_does_for_a_person_names_the_person() -> None:
    async with served() as door:
        client, talk = await door.caller("web"), {"session": "talk/1"}
        client.headers["On-Behalf-Of"] = "ann"

        async def post(path: str, body: Any, **where: str) -> Any:
            return await ok(await client.post(path, params=where or RUN, json=body))

        for id in ("t1", "t2"):
            await post("/v1/tasks", {"payload": 1, "id": id})
        [claimed] = (await post("/v1/tasks/claim", {"lease_s": 60}))["items"]
        await post("/v1/task/cancel", {"id": "t2"})
        cancelled = await ok(await client.get("/v1/task", params={**RUN, "id": "t2"}))
        asked = await post("/v1/approvals", {"question": "Pay?", "id": "q"})
        withdrawn = await post("/v1/approval/withdraw", {"id": "q"})
        await post("/v1/conversation", {"message": {"role": "user", "content": "a"}}, **talk)
        await post("/v1/conversation/fork", {"name": "f"}, **talk)
        await post("/v1/conversation/merge", {"name": "f", "summary": "went ok"}, **talk)
        await post("/v1/conversation/reply", {"id": "r"}, **talk)
        await ok(await client.post("/v1/conversation/stop", params=talk))
        entries = (await ok(await client.get("/v1/conversation", params=talk)))["items"]

        assert {claimed["worker"], cancelled["cancelled_by"], asked["asked_by"], withdrawn["closed_by"]} == {
            "web/ann"
        }
        assert [entry["author"] for entry in entries] == ["web/ann"] * 3
        assert entries[2]["meta"] == {"stopped_by": "web/ann"}
