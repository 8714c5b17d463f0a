"""Steps of tasks, queues, schedules, written replies and the health of the store, over HTTP."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import httpx
import msgspec

from keepstate.engine.space.keepstate import Keepstate
from tests.server.conftest import ALL, Served, served
from tests.server.test_operations import RUN, ok, problem

TALK = {"session": "talk/1"}


async def claimed(door: Served, client: httpx.AsyncClient) -> dict[str, Any]:
    """Put task t if it is not there, claim it, and return the proof of the claim."""
    await ok(await client.post("/v1/tasks", params=RUN, json={"payload": 1, "id": "t"}))
    answer = await ok(
        await client.post("/v1/tasks/claim", params=RUN, json={"lease_s": 60, "wait_s": 10, "kinds": [""]})
    )
    (task,) = [each for each in answer["items"] if each["id"] == "t"]
    return {"id": "t", "token": task["token"]}


async def step(client: httpx.AsyncClient, what: str, **body: Any) -> dict[str, Any]:
    return await ok(await client.post(f"/v1/task/step/{what}", params=RUN, json=body))


# ---- steps


async def test_a_step_is_recorded_once_and_known_to_the_next_attempt() -> None:
    async with served() as door:
        client = await door.caller()
        held = await claimed(door, client)

        new = await step(client, "begin", **held, name="fetch")
        value = {"@type": "tuple", "items": [1, 2**53 + 1]}
        recorded = await step(client, "record", **held, name="fetch", result=value)
        again = await step(client, "record", **held, name="fetch", result="other")
        await ok(await client.post("/v1/task/release", params=RUN, json=held))
        stale = await client.post("/v1/task/step/record", params=RUN, json={**held, "name": "x", "result": 1})
        former, held = held, await claimed(door, client)
        taken = [
            await client.post(f"/v1/task/step/{what}", params=RUN, json={**former, "name": "x"})
            for what in ("begin", "record", "receive")
        ]
        known = await step(client, "begin", **held, name="fetch")
        read = await ok(await client.get("/v1/task/step", params={**RUN, "id": "t", "name": "fetch"}))
        listed = await ok(await client.get("/v1/task/steps", params={**RUN, "id": "t"}))
        absent = await client.get("/v1/task/step", params={**RUN, "id": "t", "name": "x"})

        result = {"@type": "tuple", "items": [1, {"@type": "int", "value": str(2**53 + 1)}]}
        assert new == {"state": "new", "result": None}
        assert recorded == again == known == read == {"state": "done", "result": result}
        assert [(row["name"], row["kind"], row["state"]) for row in listed["items"]] == [
            ("fetch", "step", "done")
        ]
        assert [problem(one) for one in taken] == [(409, "lease_lost")] * 3
        assert (problem(stale), problem(absent)) == ((409, "lease_lost"), (404, "not_found"))


async def test_a_step_that_runs_at_most_once_is_not_run_by_a_later_attempt_until_it_is_settled() -> None:
    async with served() as door:
        client = await door.caller()
        held = await claimed(door, client)

        begun = [await step(client, "begin", **held, name="pay", once=True) for _ in range(2)]
        await ok(await client.post("/v1/task/release", params=RUN, json=held))
        held = await claimed(door, client)
        unknown = [
            await client.post(f"/v1/task/step/{what}", params=RUN, json={**held, "name": "pay"})
            for what in ("begin", "record")
        ]
        await step(client, "settle", id="t", name="pay", result={"paid": 5})
        settled = await step(client, "begin", **held, name="pay", once=True)

        assert [each["state"] for each in begun] == ["new", "new"]
        assert [problem(one) for one in unknown] == [(409, "step_unknown")] * 2
        assert settled == {"state": "done", "result": {"paid": 5}}


async def test_steps_over_http_and_of_the_library_are_in_the_order_of_recording() -> None:
    async with served() as door:
        client = await door.caller()
        queue = door.ks.space("run/1").queue
        held = await claimed(door, client)

        await step(client, "record", **held, name="z", result=0)
        await step(client, "begin", **held, name="y", once=True)
        await step(client, "record", **held, name="y", result=1)
        await ok(await client.post("/v1/task/release", params=RUN, json=held))
        (task,) = await queue.claim("library", lease_s=60)
        values = [await task.step(name, lambda: 9) for name in ("z", "x", "w")]
        await task.release()
        held = await claimed(door, client)
        await step(client, "record", **held, name="a", result=2)
        await ok(await client.post("/v1/task/complete", params=RUN, json=held))
        body = {"id": "t", "from_step": "x", "result": "edited"}
        await ok(await client.post("/v1/task/rerun", params=RUN, json=body))
        names = [each.name for each in await queue.steps("t")]
        edited = await ok(await client.get("/v1/task/step", params={**RUN, "id": "t", "name": "x"}))

        assert values == [0, 9, 9]
        assert names == ["z", "y", "x"] and edited["result"] == "edited"


async def test_a_task_runs_again_from_a_step_with_an_edited_result() -> None:
    async with served() as door:
        client = await door.caller()
        held = await claimed(door, client)
        await step(client, "record", **held, name="plan", result="x" * 20_000)
        await step(client, "record", **held, name="write", result="draft")
        running = await client.post("/v1/task/rerun", params=RUN, json={"id": "t"})
        copied = await ok(
            await client.post(
                "/v1/task/rerun",
                params=RUN,
                json={"id": "t", "from_step": "plan", "result": "short", "as_id": "t2"},
            )
        )
        await ok(await client.post("/v1/task/complete", params=RUN, json=held))
        wrong = [
            await client.post("/v1/task/rerun", params=RUN, json={"id": "t", **more})
            for more in ({"result": 1}, {"from_step": "none"})
        ]
        again = await ok(await client.post("/v1/task/rerun", params=RUN, json={"id": "t"}))
        left = await ok(await client.get("/v1/task/steps", params={**RUN, "id": "t"}))
        kept = await ok(await client.get("/v1/task/step", params={**RUN, "id": "t2", "name": "plan"}))
        of_copy = await ok(await client.get("/v1/task/steps", params={**RUN, "id": "t2"}))

        assert problem(running) == (409, "transition")
        assert copied == {"id": "t2", "added": True, "state": "ready"}
        assert [problem(one) for one in wrong] == [(422, "invalid"), (404, "not_found")]
        assert again["state"] == "ready" and left["items"] == []
        assert kept == {"state": "done", "result": "short"}
        assert [row["name"] for row in of_copy["items"]] == ["plan"]


async def test_a_task_waits_for_messages_times_tasks_and_people_without_a_worker() -> None:
    async with served() as door:
        client = await door.caller()
        person = await door.caller("person", ["answer"])

        async def attempt(what: str, **body: Any) -> dict[str, Any]:
            """Claim the task for an attempt that comes to one step, and return its answer."""
            held = await claimed(door, client)
            answer = await step(client, what, **held, **body)
            if answer["state"] != "waiting":
                await ok(await client.post("/v1/task/release", params=RUN, json=held))
            lost = await client.post("/v1/task/heartbeat", params=RUN, json={**held, "lease_s": 1})
            assert problem(lost) == (409, "lease_lost")
            return answer

        waiting = await attempt("receive", name="go")
        state = (await ok(await client.get("/v1/task", params={**RUN, "id": "t"})))["state"]
        await ok(await client.post("/v1/task/send", params=RUN, json={"id": "t", "name": "go", "value": [7]}))
        received = await attempt("receive", name="go")
        late = await attempt("receive", name="never", timeout_s=0)
        asleep = await attempt("sleep", name="rest", seconds=0)
        spawned = await attempt("spawn", name="child", task={"payload": 2, "kind": "other"})
        for_child = await attempt("await", ids=["t/child"])
        (child,) = (
            await ok(
                await client.post("/v1/tasks/claim", params=RUN, json={"lease_s": 60, "kinds": ["other"]})
            )
        )["items"]
        done = {"id": child["id"], "token": child["token"], "result": "fine"}
        await ok(await client.post("/v1/task/complete", params=RUN, json=done))
        results = await attempt("await", ids=["t/child"])
        question = {"question": "Go?", "subject": {"n": 1}}
        asking = await attempt("ask", name="sure", question=question)
        approval = await ok(await client.get("/v1/approval", params={**RUN, "id": "t/sure"}))
        answer = {"id": "t/sure", "value": True, "saw": approval["digest"]}
        await ok(await person.post("/v1/approval/answer", params=RUN, json=answer))
        answered = await attempt("ask", name="sure", question=question)
        final = await ok(await client.get("/v1/task", params={**RUN, "id": "t"}))

        assert (waiting["state"], state) == ("waiting", "waiting")
        assert received == {"state": "done", "result": [7]} and late["state"] == "timeout"
        assert asleep["state"] == "done" and spawned == {"state": "done", "result": "t/child"}
        assert for_child["state"] == "waiting" and results == {"state": "done", "result": ["fine"]}
        assert (asking["state"], approval["asked_by"], approval["task"]) == ("waiting", "ann", "t")
        assert (answered["result"]["approved"], answered["result"]["by"], answered["result"]["subject"]) == (
            True, "person", {"n": 1}
        )  # fmt: skip
        assert final["attempt"] == 0


async def test_a_batch_that_is_a_step_is_applied_once_with_its_results() -> None:
    async with served() as door:
        client = await door.caller()
        held = await claimed(door, client)
        body = {
            "operations": [{"do": "append", "events": [1]}, {"do": "put_task", "payload": 1, "id": "next"}],
            "step": {**held, "name": "publish"},
        }

        first, second = [await ok(await client.post("/v1/batch", params=RUN, json=body)) for _ in range(2)]
        writer = await door.caller("writer", ["write"])
        refused = await writer.post("/v1/batch", params=RUN, json=body)
        both = await client.post("/v1/batch", params=RUN, json=body, headers={"Idempotency-Key": "k"})
        await ok(await client.post("/v1/task/release", params=RUN, json=held))
        lost = await client.post("/v1/batch", params=RUN, json={**body, "step": {**held, "name": "other"}})

        events = await door.ks.space("run/1").events.read()
        assert len(events) == 1 and first["revision"] > 0 and second["revision"] == 0
        assert first["results"] == second["results"] == [
            {"id": None, "existed": None}, {"id": "next", "existed": None}
        ]  # fmt: skip
        assert (problem(refused), problem(both), problem(lost)) == (
            (403, "forbidden"), (422, "invalid"), (409, "lease_lost")
        )  # fmt: skip


# ---- queues and schedules


async def test_a_queue_is_configured_paused_and_shown() -> None:
    async with served() as door:
        client = await door.caller()
        await ok(await client.post("/v1/tasks", params=RUN, json={"payload": 1, "kind": "mail"}))
        limits = [{"running": 1}, {"starts": 5, "per_s": 2.5, "kind": "mail", "each_key": True}]

        retry = {"first_s": 30, "never": ["ValueError"], "rules": {"TimeoutError": {"first_s": 2}}}
        rules = {"limits": limits, "aging_s": 60, "retry": retry}

        await ok(await client.put("/v1/queue", params=RUN, json=rules))
        await ok(await client.post("/v1/queue/pause", params=RUN, json={"kind": "mail"}))
        shown = await ok(await client.get("/v1/queue", params=RUN))
        none = await ok(await client.post("/v1/tasks/claim", params=RUN, json={"lease_s": 1}))
        await ok(await client.post("/v1/queue/resume", params=RUN, json={"kind": "mail"}))
        one = await ok(await client.post("/v1/tasks/claim", params=RUN, json={"lease_s": 1}))
        empty = await client.put("/v1/queue", params=RUN, json={"limits": [{}]})
        deep = {"retry": {"rules": {"ValueError": {"rules": {}}}}}
        too_deep = await client.put("/v1/queue", params=RUN, json=deep)

        given = {"running": None, "starts": None, "per_s": 1.0, "kind": None, "each_key": False}
        assert shown["limits"] == [{**given, **each} for each in limits]
        assert (shown["is_paused"], shown["paused_kinds"], shown["aging_s"]) == (False, ["mail"], 60)
        assert shown["counts"]["ready"] == 1 and (none["items"], len(one["items"])) == ([], 1)
        usual = {"first_s": 1, "factor": 2, "longest_s": 300, "jitter": 0.1, "never": []}
        others = {"TimeoutError": {**usual, "first_s": 2}}
        assert shown["retry"] == {**usual, **retry, "rules": others}
        assert problem(empty) == problem(too_deep) == (422, "invalid")


async def test_queues_under_a_name_are_counted_paused_and_requeued_and_no_others() -> None:
    async with served() as door:
        for name in ("run/1", "run/2", "run/10", "other"):
            queue = door.ks.space(name).queue
            await queue.put(name, id="t", max_attempts=1)
            (task,) = await queue.claim("w", lease_s=60)
            await task.fail("broken")
        client, narrow = await door.caller(), await door.caller("narrow", under="run/1")

        pages = [await ok(await client.get("/v1/queues/dead", params={"under": "run", "limit": 2}))]
        after = {"under": "run", "limit": 2, "after": pages[0]["next"]}
        pages.append(await ok(await client.get("/v1/queues/dead", params=after)))
        own = await ok(await narrow.get("/v1/queues/dead"))
        wider = await narrow.get("/v1/queues/dead", params={"under": "run"})
        foreign = await narrow.get("/v1/queues/dead", params={"after": pages[0]["next"]})
        paused = await ok(await narrow.post("/v1/queues/pause", json={}))
        others = await door.ks.space("run/10").queue.rules()
        resumed = await ok(await narrow.post("/v1/queues/resume", json={}))
        counted = await ok(await client.get("/v1/queues/counts", params={"under": "run"}))
        requeued = await ok(await narrow.post("/v1/queues/requeue", json={"limit": 10}))
        left = await ok(await client.get("/v1/queues/counts"))

        found = [(row["space"], row["task"]["error"]) for page in pages for row in page["items"]]
        assert found == [("run/1", "broken"), ("run/10", "broken"), ("run/2", "broken")]
        assert [row["space"] for row in own["items"]] == ["run/1"]
        assert (problem(wider), problem(foreign)) == ((403, "forbidden"), (422, "invalid"))
        assert paused == resumed == requeued == {"count": 1} and not others.is_paused
        assert (counted["counts"]["dead"], left["counts"]["dead"], left["counts"]["ready"]) == (3, 3, 1)


async def test_a_forged_cursor_of_dead_tasks_leads_to_no_other_tenant_or_place() -> None:
    async with served() as door:
        acme = door.ks.tenant("acme")
        for ks, name in ((acme, "run/1"), (door.ks, "secret"), (door.ks, "run/10")):
            await _add_dead(ks, name)
        client, narrow = await door.caller(), await door.caller("narrow", under="run/1")
        of_acme = await _cursor_in(acme, "run/1")
        beyond = [await _cursor_in(door.ks, name) for name in ("secret", "run/10")]

        answers = [
            await client.get("/v1/queues/dead", params={"after": _forged("", of_acme)}),
            *[await narrow.get("/v1/queues/dead", params={"after": _forged("run/1", it)}) for it in beyond],
        ]
        right = await client.get("/v1/queues/dead", params={"after": _forged("", beyond[0])})

        assert [problem(one) for one in answers] == [(422, "invalid")] * 3
        assert [row["task"]["id"] for row in right.json()["items"]] == ["t1"]


async def _add_dead(ks: Keepstate, name: str) -> None:
    queue = ks.space(name).queue
    for number in range(2):
        await queue.put("hidden", id=f"t{number}", max_attempts=1)
        (task,) = await queue.claim("w", lease_s=60)
        await task.fail("broken")


async def _cursor_in(ks: Keepstate, name: str) -> list[Any]:
    """Return the parts of a cursor behind the first dead task of a space."""
    cursor = (await ks.queues(name).dead(limit=1)).next
    assert cursor is not None
    parts: list[Any] = msgspec.msgpack.decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    return parts


def _forged(under: str, parts: list[Any]) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode([under, *parts[1:]])).decode().rstrip("=")


async def test_a_schedule_is_put_shown_paused_run_and_deleted() -> None:
    async with served() as door:
        client, where = await door.caller(), {**RUN, "name": "report"}
        body = {"cron": "0 2 * * *", "zone": "Europe/Berlin", "kind": "report", "payload": {"n": 1}}

        put = await ok(await client.put("/v1/schedule", params=where, json=body))
        got = await ok(await client.get("/v1/schedule", params=where))
        listed = await ok(await client.get("/v1/schedules", params=RUN))
        times = await ok(await client.get("/v1/schedule/next", params={**where, "limit": 2}))
        paused = [await ok(await client.post("/v1/schedule/pause", params=where)) for _ in range(2)]
        ran = await ok(await client.post("/v1/schedule/run", params=where))
        resumed = await ok(await client.post("/v1/schedule/resume", params=where))
        task = await ok(await client.get("/v1/task", params={**RUN, "id": ran["id"]}))
        deleted = [await ok(await client.delete("/v1/schedule", params=where)) for _ in range(2)]
        wrong = [
            await client.put("/v1/schedule", params=where, json={"cron": "x"}),
            await client.put("/v1/schedule", params=where, json={}),
            await client.get("/v1/schedule", params=where),
            await client.post("/v1/schedule/run", params=where),
        ]

        assert put == got and got["payload"] == {"n": 1}
        assert [(row["name"], row["payload"]) for row in listed["items"]] == [("report", None)]
        assert len(times["items"]) == 2 and times["items"][0] == got["next_at"]
        assert paused == [{"changed": True}, {"changed": False}] and resumed == {"changed": True}
        assert (task["kind"], task["payload"], task["state"]) == ("report", {"n": 1}, "ready")
        assert deleted == [{"existed": True}, {"existed": False}]
        assert [problem(one) for one in wrong] == [
            (422, "invalid"), (422, "invalid"), (404, "not_found"), (404, "not_found")
        ]  # fmt: skip


# ---- replies


async def test_a_reply_is_written_by_requests_followed_and_added_once() -> None:
    async with served() as door:
        client = await door.caller()
        await ok(
            await client.post(
                "/v1/conversation", params=TALK, json={"message": {"role": "user", "content": "?"}}
            )
        )

        proof = await ok(await client.post("/v1/conversation/reply", params=TALK, json={"id": "r1"}))
        busy = await client.post("/v1/conversation/reply", params=TALK, json={})
        assert "Keepstate" not in busy.json()["detail"]  # which has the place of the store
        sent = {**_held(proof), "text": "Hel"}
        first = await ok(await client.post("/v1/conversation/reply/extend", params=TALK, json=sent))
        again = await ok(await client.post("/v1/conversation/reply/extend", params=TALK, json=sent))
        other = await client.post("/v1/conversation/reply/extend", params=TALK, json={**sent, "text": "Xxx"})
        early = await client.post("/v1/conversation/reply/end", params=TALK, json=_held(proof))
        last = {**_held(first), "text": "lo", "meta": {"tokens": 2}}
        ended = [
            await ok(await client.post("/v1/conversation/reply/end", params=TALK, json=last))
            for _ in range(2)
        ]
        late = await client.post(
            "/v1/conversation/reply/extend", params=TALK, json={**_held(first), "text": "!"}
        )
        page = await ok(await client.get("/v1/conversation", params=TALK))
        same = await client.post("/v1/conversation/reply", params=TALK, json={"id": "r1"})
        free = await ok(await client.post("/v1/conversation/reply", params=TALK, json={"id": "r2"}))

        entry = page["items"][-1]
        assert first == again and first["position"] != proof["position"]
        assert problem(busy) == problem(other) == problem(early) == (409, "conflict")
        assert ended[0] == ended[1] and ended[0]["status"] == "done" and problem(late) == (409, "lease_lost")
        assert (entry["id"], entry["message"]["content"], entry["status"]) == ("r1", "Hello", "done")
        assert (entry["author"], entry["meta"]) == ("ann", {"tokens": 2}) and len(page["items"]) == 2
        assert problem(same) == (409, "already_exists") and free["id"] == "r2"


async def test_a_reply_that_is_stopped_or_fails_tells_its_writer_and_keeps_its_text() -> None:
    async with served() as door:
        client = await door.caller()
        proof = await ok(await client.post("/v1/conversation/reply", params=TALK, json={"id": "r1"}))
        said = await ok(
            await client.post(
                "/v1/conversation/reply/extend", params=TALK, json={**_held(proof), "text": "A"}
            )
        )
        await ok(await client.post("/v1/conversation/stop", params=TALK))
        told = [
            await ok(
                await client.post(
                    f"/v1/conversation/reply/{what}", params=TALK, json={**_held(said), "text": "B"}
                )
            )
            for what in ("extend", "end")
        ]
        failing = await ok(await client.post("/v1/conversation/reply", params=TALK, json={"id": "r2"}))
        failed = await ok(
            await client.post(
                "/v1/conversation/reply/end",
                params=TALK,
                json={**_held(failing), "text": "C", "how": "failed"},
            )
        )
        page = await ok(await client.get("/v1/conversation", params=TALK))

        assert [each["status"] for each in told] == ["stopped", "stopped"] and failed["status"] == "failed"
        assert [(each["message"]["content"], each["status"]) for each in page["items"]] == [
            ("A", "stopped"), ("C", "failed")
        ]  # fmt: skip


async def test_a_reply_whose_writer_is_gone_fails_and_its_proof_is_worth_nothing() -> None:
    async with served() as door:
        client = await door.caller()
        proof = await ok(
            await client.post("/v1/conversation/reply", params=TALK, json={"id": "r1", "lease_s": 0.05})
        )
        await asyncio.sleep(0.1)
        fresh = await ok(await client.post("/v1/conversation/reply", params=TALK, json={"id": "r2"}))

        lost = [
            await client.post(
                f"/v1/conversation/reply/{what}", params=TALK, json={**_held(proof), "text": "x"}
            )
            for what in ("extend", "end")
        ]
        stolen = await client.post(
            "/v1/conversation/reply/extend", params=TALK, json={**_held(fresh), "token": proof["token"]}
        )

        assert [problem(one) for one in [*lost, stolen]] == [(409, "lease_lost")] * 3


def _held(proof: dict[str, Any]) -> dict[str, Any]:
    return {name: proof[name] for name in ("id", "token", "position")}


# ---- the store


async def test_health_and_keys_are_shown_to_administrators_of_the_whole_store() -> None:
    async with served() as door:
        client, of_acme = await door.caller(), await door.caller("acme", ALL, tenant="acme")

        short = await ok(await client.get("/v1/health"))
        full = await ok(await client.get("/v1/health", params={"full": "true"}))
        keys = await ok(await client.get("/v1/keys"))
        refused = [await of_acme.get(path) for path in ("/v1/health", "/v1/keys")]
        audited = [event.get("operation") for event in await door.keys.audited()]

        assert (short["kind"], short["well"]) == ("memory", False)
        assert {"time", "index"} <= {row["subject"] for row in full["items"]}
        assert [(row["name"], row["tenant"]) for row in keys["items"]] == [("acme", "acme"), ("ann", None)]
        assert all("secret" not in row and "digest" not in row for row in keys["items"])
        assert [problem(one) for one in refused] == [(403, "not_allowed")] * 2
        assert {"getHealth", "listKeys"} <= {*audited}
