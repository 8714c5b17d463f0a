"""Branches over HTTP: graph, edits of a past state, merges by rules; conversations and their forks."""

from __future__ import annotations

import json
from typing import Any

import httpx

import keepstate
from keepstate import Session
from keepstate.sessions import ANY_USER
from tests.server.conftest import served
from tests.server.test_operations import RUN, ok, problem

TALK = {"session": "talk/1"}


async def commit(client: httpx.AsyncClient, branch: str, *edits: dict[str, Any], **more: Any) -> Any:
    """Commit edits to a branch."""
    body = {"branch": branch, "edits": [*edits], **more}
    return await ok(await client.post("/v1/history/commit", params=RUN, json=body))


async def test_the_graph_lists_children_before_parents_over_all_branches() -> None:
    async with served() as door:
        client, history = await door.caller(), door.ks.space("run/1").history
        for n in range(4):
            await history.commit({"n": n, "tries": 0})
        await history.branch("try", "main#2")
        await history.commit({"n": 1, "tries": 1}, branch="try")
        await history.merge("try")
        await history.tag("good", "main#2")

        graph = await ok(await client.get("/v1/history/graph", params=RUN))
        cut = await ok(await client.get("/v1/history/graph", params={**RUN, "limit": 2}))

        places = {each["id"]: place for place, each in enumerate(graph["items"])}
        assert all(places[each["id"]] < places[above] for each in graph["items"] for above in each["parents"])
        assert [len(each["parents"]) for each in graph["items"]].count(2) == 1 and len(places) == 6
        assert [each["name"] for each in graph["branches"] + graph["tags"]] == ["main", "try", "good"]
        assert (graph["is_complete"], cut["is_complete"], len(cut["items"])) == (True, False, 2)


async def test_a_log_lists_the_commits_with_given_notes() -> None:
    async with served() as door:
        client, history = await door.caller(), door.ks.space("run/1").history
        for n in range(4):
            await history.commit({"n": n}, meta={"model": "large" if n % 2 else "small"})

        log = await ok(
            await client.get("/v1/history/log", params={**RUN, "meta": json.dumps({"model": "large"})})
        )
        wrong = await client.get("/v1/history/log", params={**RUN, "meta": "[1]"})

        assert [each["number"] for each in log["items"]] == [4, 2] and problem(wrong) == (422, "invalid")


async def test_a_past_state_is_edited_on_a_branch_of_its_own() -> None:
    async with served() as door:
        client, space = await door.caller(), door.ks.space("run/1", record=True)
        await space.documents.put(
            "plan", {"step": 1, "notes": ["a", "b", "c"], "pair": (1, 2), "cut": [1, 2, 3]}
        )
        await space.documents.put("plan", {"step": 2, "notes": [], "pair": (1, 2)})

        made = await commit(
            client,
            "what-if",
            {"path": ["plan", "step"], "value": 7},
            {"path": ["plan", "notes"], "keep": 2},
            {"path": ["plan", "cut"], "keep": 1},
            {"path": ["plan", "notes", 0], "remove": True},
            {"path": ["plan", "notes", 1], "value": {"@type": "tuple", "items": [1]}},
            {"path": ["new"], "value": None},
            at="main#1",
            message="with a better step",
            meta={"why": "try"},
        )
        again = await commit(client, "what-if", {"path": ["new"], "remove": True}, expected_head=made["id"])

        state = await space.history.checkout(made["id"])
        assert (
            state["plan"] == {"step": 7, "notes": ["b", (1,)], "pair": (1, 2), "cut": [1]}
            and state["new"] is None
        )
        assert (made["author"], made["number"], made["branch"], made["meta"]) == (
            "ann", 2, "what-if", {"why": "try"}
        )  # fmt: skip
        assert dict(await space.history.checkout("what-if")) == {"plan": state["plan"]}
        assert (await space.documents.get("plan"))["step"] == 2 and again["parents"] == [made["id"]]


async def test_an_edit_that_does_not_fit_the_state_writes_nothing() -> None:
    async with served() as door:
        client, space = await door.caller(), door.ks.space("run/1", record=True)
        await space.documents.put("plan", {"notes": ["a"], "pair": (1, 2)})
        edits: list[tuple[dict[str, Any], int, str]] = [
            ({"path": ["plan", "none", 1], "value": 1}, 404, "not_found"),
            ({"path": ["plan", "notes", 2], "value": 1}, 404, "not_found"),
            ({"path": ["plan", "notes", -1], "value": 1}, 404, "not_found"),
            ({"path": ["plan", "notes", True], "value": 1}, 404, "not_found"),
            ({"path": ["plan", "pair", 0], "value": 1}, 422, "invalid"),
            ({"path": ["plan"], "keep": 1}, 422, "invalid"),
            ({"path": ["plan"], "keep": 1, "remove": True}, 422, "invalid"),
            ({"path": ["plan"]}, 422, "invalid"),
            ({"path": [1], "value": 1}, 422, "invalid"),
            ({"path": ["gone"], "remove": True}, 404, "not_found"),
        ]

        for edit, status, code in edits:
            body = {"branch": "b", "at": "main", "edits": [edit]}
            answer = await client.post("/v1/history/commit", params=RUN, json=body)
            assert problem(answer) == (status, code), (edit, answer.text)
        on_none = await client.post("/v1/history/commit", params=RUN, json={"branch": "b", "edits": []})
        moved = await client.post(
            "/v1/history/commit",
            params=RUN,
            json={"branch": "b", "at": "main", "edits": [], "expected_head": "main~1"},
        )
        on_main = await client.post(
            "/v1/history/commit",
            params=RUN,
            json={"branch": "main", "edits": [edits[0][0] | {"path": ["plan"]}]},
        )

        assert problem(on_none) == (404, "not_found") and problem(moved) == (422, "invalid")
        assert problem(on_main) == (422, "invalid")
        assert [each.name async for each in space.history.branches()] == ["main"]


async def test_an_expected_head_that_has_moved_is_a_conflict() -> None:
    async with served() as door:
        client, history = await door.caller(), door.ks.space("run/1").history
        first = await history.commit({"n": 1})
        await history.commit({"n": 2})
        body = {"branch": "main", "edits": [{"path": ["n"], "value": 3}], "expected_head": first.id}

        moved = await client.post("/v1/history/commit", params=RUN, json=body)

        assert problem(moved) == (409, "conflict") and dict(await history.checkout()) == {"n": 2}


async def test_a_preview_shows_conflicts_and_changes_and_writes_nothing() -> None:
    async with served() as door:
        client, space = await door.caller(), door.ks.space("run/1", record=True)
        history = space.history
        await space.documents.put("plan", {"price": 1, "note": "a"})
        at_first = await history.find()
        await commit(client, "cheap", {"path": ["plan", "price"], "value": 2}, at="main")
        await commit(client, "cheap", {"path": ["plan", "more"], "value": True})
        await space.documents.put("plan", {"price": 3, "note": "a"})
        revision = await space.revision()
        where = {**RUN, "source": "cheap"}
        rules = [{"path": ["plan", "price"], "rule": "theirs"}]

        open_ = await ok(await client.get("/v1/history/merge", params=where))
        refused = await client.post("/v1/history/merge", params=RUN, json={"source": "cheap"})
        decided = await ok(
            await client.get("/v1/history/merge", params={**where, "rules": json.dumps(rules)})
        )
        reader = await door.caller("reader", ["read"])
        also = await ok(await reader.get("/v1/history/merge", params=where))
        before = await space.revision()
        merged = await ok(
            await client.post(
                "/v1/history/merge", params=RUN, json={"source": "cheap", "rules": rules, "message": "better"}
            )
        )
        done = await ok(await client.get("/v1/history/merge", params=where))

        assert open_["base"]["id"] == at_first.id and open_["changes"] == [] and also == open_
        assert [
            (each["path"], each["base"], each["ours"], each["theirs"], each["their_author"])
            for each in open_["conflicts"]
        ] == [(["plan", "price"], {"value": 1}, {"value": 3}, {"value": 2}, "ann")]
        assert problem(refused) == (409, "merge_conflict") and before == revision
        assert decided["conflicts"] == []
        assert {(each["path"][1], each["kind"], each["new"]) for each in decided["changes"]} == {
            ("price", "changed", 2), ("more", "added", True)
        }  # fmt: skip
        assert await space.documents.get("plan") == {"price": 2, "note": "a", "more": True}
        assert (len(merged["parents"]), merged["author"], merged["message"]) == (2, "ann", "better")
        assert done["changes"] == [] and [each.name async for each in history.branches()] == ["cheap", "main"]


async def test_a_preview_shows_as_many_conflicts_and_changes_as_asked_for() -> None:
    async with served() as door:
        client, history = await door.caller(), door.ks.space("run/1").history
        await history.commit({"a": 0, "b": 0})
        await commit(client, "other", *({"path": [key], "value": 1} for key in "abcd"), at="main")
        where: dict[str, Any] = {**RUN, "source": "other", "limit": 1}

        changes = await ok(await client.get("/v1/history/merge", params=where))
        await history.commit({"a": 2, "b": 2})
        conflicts = await ok(await client.get("/v1/history/merge", params=where))

        assert (len(changes["changes"]), changes["is_complete"]) == (1, False)
        assert (len(conflicts["conflicts"]), conflicts["is_complete"]) == (1, False)


async def test_a_merge_into_documents_happens_once() -> None:
    async with served() as door:
        client, space = await door.caller(), door.ks.space("run/1", record=True)
        await space.documents.put("plan", {"n": 1})
        await commit(client, "b", {"path": ["plan", "n"], "value": 2}, at="main")
        body = {"source": "b"}

        first = await ok(await client.post("/v1/history/merge", params=RUN, json=body))
        await space.documents.put("plan", {"n": 1})
        again = await ok(await client.post("/v1/history/merge", params=RUN, json=body))

        assert again["number"] == 3 and first["number"] == 2
        assert await space.documents.get("plan") == {"n": 1}
        assert (await space.history.verify()).problems == ()


async def test_a_conversation_is_read_at_any_moment() -> None:
    async with served() as door:
        client = await door.caller()
        for n in range(4):
            message = {"role": "user", "content": f"m{n}"}
            await ok(await client.post("/v1/conversation", params=TALK, json={"message": message}))

        async def texts(**where: Any) -> list[str]:
            page = await ok(await client.get("/v1/conversation", params={**TALK, **where}))
            return [each["message"]["content"] for each in page["items"]]

        fork = await ok(await client.post("/v1/conversation/fork", params=TALK, json={"name": "f", "at": 1}))
        of_fork = await client.post(
            "/v1/conversation/fork", params={**TALK, "fork": "f"}, json={"name": "a/b"}
        )
        said = {"message": {"role": "user", "content": "other"}}
        await ok(await client.post("/v1/conversation", params={**TALK, "fork": "f"}, json=said))
        early = await client.get("/v1/conversation", params={**TALK, "fork": "f", "ref": "main#2"})
        none = await client.get("/v1/conversation", params={**TALK, "ref": "main#99"})
        forks = await ok(await client.get("/v1/conversation/forks", params=TALK))

        assert await texts(ref="main#2") == ["m0", "m1"] and await texts(ref="main#3", limit=2) == [
            "m1",
            "m2",
        ]
        assert await texts(ref="main#3", before="2") == ["m0", "m1"] and await texts(fork="f") == [
            "m0", "m1", "other"
        ]  # fmt: skip
        assert fork == {"name": "f", "parent": None, "at": 1, "last": 1}
        assert (await ok(of_fork))["parent"] == "f"
        assert forks["items"] == [
            {"name": "a/b", "parent": "f", "at": 1, "last": 1},
            {"name": "f", "parent": None, "at": 1, "last": 2},
        ]
        assert (problem(early), problem(none)) == ((404, "not_found"), (404, "not_found"))


async def test_a_fork_is_created_as_it_is_listed_also_where_messages_were_removed() -> None:
    async with served() as door:
        client = await door.caller()
        for text in ("a", "b"):
            said = {"message": {"role": "user", "content": text}}
            await ok(await client.post("/v1/conversation", params=TALK, json=said))
        typed = keepstate.open(await door.ks.opened())
        talk = Session("talk/1", user_id=ANY_USER, persistence=typed).conversation

        created: list[Any] = []
        for name in ("of one", "of none"):
            await talk.pop()
            created.append(
                await ok(await client.post("/v1/conversation/fork", params=TALK, json={"name": name}))
            )

        listed = (await ok(await client.get("/v1/conversation/forks", params=TALK)))["items"]
        assert listed == [created[1], created[0]]
        await typed.close()


async def test_a_conversation_of_an_earlier_moment_has_the_text_of_that_moment() -> None:
    async with served() as door:
        client = await door.caller()
        said = {"message": {"role": "user", "content": "first"}}
        await ok(await client.post("/v1/conversation", params=TALK, json=said))
        typed = keepstate.open(await door.ks.opened())
        session = Session("talk/1", user_id=ANY_USER, persistence=typed)
        talk = session.conversation
        await talk.edit(0, "second")
        await talk.clear()
        await session.end()
        await talk.append({"role": "user", "content": "of the next session"})

        moments = [
            (await ok(await client.get("/v1/conversation", params={**TALK, "ref": f"main#{n}"})))["items"]
            for n in (1, 2, 3, 4, 5)
        ]

        assert [[each["message"]["content"] for each in one] for one in moments] == [
            ["first"],
            ["second"],
            [],
            [],
            ["of the next session"],
        ]
        await typed.close()


async def test_a_fork_is_merged_whole_or_by_a_summary() -> None:
    async with served() as door:
        client = await door.caller()
        for text in ("a", "b"):
            said = {"message": {"role": "user", "content": text}}
            await ok(await client.post("/v1/conversation", params=TALK, json=said))
        for name in ("one", "two"):
            await ok(await client.post("/v1/conversation/fork", params=TALK, json={"name": name}))
            said = {"message": {"role": "user", "content": f"in {name}"}}
            await ok(await client.post("/v1/conversation", params={**TALK, "fork": name}, json=said))

        whole = await ok(await client.post("/v1/conversation/merge", params=TALK, json={"name": "one"}))
        told = await ok(
            await client.post(
                "/v1/conversation/merge", params=TALK, json={"name": "two", "summary": "went ok"}
            )
        )
        none = await client.post("/v1/conversation/merge", params=TALK, json={"name": "three"})
        page = await ok(await client.get("/v1/conversation", params=TALK))

        assert whole == {"added": 1, "number": None} and told == {"added": 1, "number": 3}
        assert [each["message"]["content"] for each in page["items"]] == ["a", "b", "in one", "went ok"]
        assert page["items"][-1]["meta"]["fork"]["name"] == "two" and page["items"][-1]["author"] == "ann"
        assert problem(none) == (404, "not_found")
