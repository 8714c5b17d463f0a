"""Every operation with every right, without a key, and with keys that are wrong, of others, or over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from keepstate.server import Key
from keepstate.server.app import OPERATIONS
from keepstate.server.keys import RIGHTS
from keepstate.server.table import Operation
from tests.server.conftest import ALL, Served, served
from tools.openapi import RIGHTS_PAGE, rights_page

HIDDEN = "only-for-acme"
NEEDS = {
    "read": """
        listSpaces getSpace findSubjects followSubjects getTenantSize getSelf listDocuments getDocument
        watchDocuments listEvents listStreams followEvents listTasks countTasks getTask getResult listAttempts
        listLeases listApprovals getApproval getApprovalLog getConversation followConversation getLog
        getCommit getState getSlice getDiff getBlame listChanges listReferences getGraph previewMerge
        listForks listSteps getStep getQueue countQueues listDead listSchedules getSchedule listTimes
        listInterrupts
    """,
    "write": """
        putDocument patchDocument deleteDocument appendEvents putTask requeueTasks removeTask cancelTask
        sendMessage applyBatch acquireLease renewLease releaseLease ask withdraw appendMessage stopReply
        createBranch deleteBranch createTag deleteTag merge rollBack revert commitEdits createFork mergeFork
        rerunTask settleStep forkThread
        configureQueue pauseQueue resumeQueue pauseQueues resumeQueues requeueQueues putSchedule
        deleteSchedule pauseSchedule resumeSchedule runSchedule beginReply extendReply endReply
    """,
    "work": """
        claimTasks completeTask failTask heartbeatTask releaseTask postponeTask beginStep recordStep sleepStep
        receiveMessage spawnTask awaitResults askStep
    """,
    "answer": "answer answerInterrupt",
    "admin": "dropSpace listTenants getHealth listKeys revokeKey getSizeOfTenant",
}
"""The right that each operation needs, as the pages say it."""
BESIDES = {"spawnTask": ("write",), "awaitResults": ("read",), "askStep": ("write",)}
"""The rights that an operation needs besides."""
RIGHT_OF = {name: right for right, names in NEEDS.items() for name in names.split()}
BODIES: dict[str, Any] = {
    "putDocument": 1,
    "patchDocument": {"a": 1},
    "appendEvents": {"events": [1]},
    "putTask": {"payload": 1},
    "requeueTasks": {"ids": ["t"]},
    "cancelTask": {"id": "t"},
    "sendMessage": {"id": "t", "name": "n", "value": 1},
    "applyBatch": {"operations": [{"do": "put", "key": "k", "value": 1}]},
    "acquireLease": {"name": "l", "ttl_s": 1},
    "renewLease": {"name": "l", "token": 1, "ttl_s": 1},
    "releaseLease": {"name": "l", "token": 1},
    "ask": {"question": "Go?"},
    "withdraw": {"id": "q"},
    "answer": {"id": "q", "value": True, "saw": "x"},
    "appendMessage": {"message": {"role": "user", "content": "hi"}},
    "createBranch": {"name": "b"},
    "createTag": {"name": "b"},
    "merge": {"source": "b"},
    "commitEdits": {"branch": "b", "edits": [{"path": ["plan"], "value": 1}]},
    "createFork": {"name": "f"},
    "answerInterrupt": {"checkpoint": "c", "interrupt": "i", "value": True},
    "forkThread": {"checkpoint": "c", "edits": [{"path": ["plan"], "value": 1}]},
    "mergeFork": {"name": "f"},
    "rollBack": {"steps": 1},
    "revert": {"ref": "main"},
    "claimTasks": {"lease_s": 1},
    "completeTask": {"id": "t", "token": 1},
    "failTask": {"id": "t", "token": 1, "error": "e"},
    "heartbeatTask": {"id": "t", "token": 1, "lease_s": 1},
    "releaseTask": {"id": "t", "token": 1},
    "postponeTask": {"id": "t", "token": 1, "seconds": 1},
    "rerunTask": {"id": "t"},
    "beginStep": {"id": "t", "token": 1, "name": "s"},
    "recordStep": {"id": "t", "token": 1, "name": "s", "result": 1},
    "sleepStep": {"id": "t", "token": 1, "name": "s", "seconds": 60},
    "receiveMessage": {"id": "t", "token": 1, "name": "s"},
    "spawnTask": {"id": "t", "token": 1, "name": "s", "task": {"payload": 1}},
    "awaitResults": {"id": "t", "token": 1, "ids": ["u"]},
    "askStep": {"id": "t", "token": 1, "name": "s", "question": {"question": "Go?"}},
    "settleStep": {"id": "t", "name": "s", "result": 1},
    "configureQueue": {"limits": [{"running": 1}]},
    "pauseQueue": {},
    "resumeQueue": {},
    "pauseQueues": {},
    "resumeQueues": {},
    "requeueQueues": {},
    "putSchedule": {"every_s": 60},
    "beginReply": {},
    "extendReply": {"id": "r", "token": 1, "position": "1", "text": "x"},
    "endReply": {"id": "r", "token": 1, "position": "1"},
}
GIVEN = {
    "space": "run/1", "key": "plan", "session": "talk", "id": "t", "name": "b", "a": "main", "b": "main",
    "path": '["plan"]', "tenant": "acme",
    "source": "b",
}  # fmt: skip
"""Values of the parameters that operations require."""
IDS = [row.name for row in OPERATIONS]


@dataclass
class Request:
    """A request for an operation that is right but for its key."""

    row: Operation
    more: dict[str, str] = field(default_factory=dict)

    async def send(self, client: httpx.AsyncClient, **headers: str) -> httpx.Response:
        required = {each.encode_name for each in _fields(self.row) if each.required}
        query = {name: value for name, value in GIVEN.items() if name in required} | self.more
        content = None
        if self.row.body is not None:
            content = msgspec.json.encode(BODIES[self.row.name])
            headers["Content-Type"] = self.row.media
        return await client.request(
            self.row.method, self.row.path, params=query, content=content, headers=headers
        )


def _fields(row: Operation) -> Any:
    return msgspec.structs.fields(row.query)


async def fill(door: Served) -> None:
    """Write into the tenant acme what its keys may see, and others may not."""
    acme = door.ks.tenant("acme")
    space = acme.space("run/1", record=True)
    await space.documents.put("plan", HIDDEN)
    await space.events.append(HIDDEN)
    await space.queue.put(HIDDEN, id="t")
    await space.approvals.ask(HIDDEN, id="q")
    await space.history.branch("b")


def code_of(response: httpx.Response) -> str | None:
    return response.json().get("code") if response.status_code >= 400 else None


def test_the_table_names_each_operation_with_its_right() -> None:
    assert {row.name: row.right for row in OPERATIONS} == RIGHT_OF
    assert {row.name: row.also for row in OPERATIONS if row.also} == BESIDES
    assert len({row.name for row in OPERATIONS}) == len({(row.method, row.path) for row in OPERATIONS})
    assert {row.name for row in OPERATIONS if row.body is not None} == {*BODIES}


async def test_the_page_of_rights_is_what_a_server_does_for_a_key_of_each_right() -> None:
    async with served() as door:
        await fill(door)
        allowed: dict[str, set[str]] = {row.name: set() for row in OPERATIONS}
        clients = {right: await door.caller(right, [right], tenant="acme") for right in RIGHTS}
        door.app.stop()  # a stream that is allowed then answers at once that the server stops

        for row in OPERATIONS:
            for right, client in clients.items():
                answer = await Request(row).send(client)
                if (answer.status_code, code_of(answer)) != (403, "forbidden"):
                    allowed[row.name].add(right)

        page = rights_page({name: frozenset(rights) for name, rights in allowed.items()})
        assert RIGHTS_PAGE.read_text(encoding="utf-8") == page, "run: python tools/openapi.py"


@pytest.mark.parametrize("right", RIGHTS)
async def test_a_key_with_one_right_may_do_what_needs_it_and_nothing_more(right: str) -> None:
    async with served() as door:
        await fill(door)
        client = await door.caller(right, [right], tenant="acme")
        door.app.stop()  # a stream that is allowed then answers at once that the server stops

        wrong = []
        for row in OPERATIONS:
            needed = {RIGHT_OF[row.name], *BESIDES.get(row.name, ())}
            is_allowed = needed <= {right, *(("read", "write") if right == "admin" else ())}
            response = await Request(row).send(client)
            refused = response.status_code in (401, 403) and code_of(response) == "forbidden"
            if refused == is_allowed or (refused and HIDDEN in response.text) or response.status_code == 500:
                wrong.append((row.name, response.status_code, response.text))

        assert wrong == []


@pytest.mark.parametrize("row", OPERATIONS, ids=IDS)
async def test_a_key_that_is_not_valid_gets_the_same_answer_everywhere(row: Operation) -> None:
    async with served() as door:
        await fill(door)
        secret = await door.secret("gone", ALL, tenant="acme")
        past = datetime.now(UTC) - timedelta(seconds=1)
        expired = await door.keys.add(Key("old", frozenset(["read"]), "acme", "", past))
        await door.keys.revoke("gone")
        await _until_unknown(door, secret)
        answers = [
            await Request(row).send(door.client(given))
            for given in (None, "", "ks_" + "0" * 43, secret, expired, "x" * 5_000)
        ]

        assert {(one.status_code, one.content) for one in answers} == {(401, answers[0].content)}
        assert {one.headers["www-authenticate"] for one in answers} == {"Bearer"}


@pytest.mark.parametrize("row", OPERATIONS, ids=IDS)
async def test_a_key_of_another_tenant_or_place_sees_nothing(row: Operation) -> None:
    async with served() as door:
        await fill(door)
        other = await door.caller("other", ALL, tenant="zeta")
        nowhere = await door.caller("nowhere", ALL, tenant="acme", under="user/1")
        door.app.stop()

        of_other, of_nowhere = await Request(row).send(other), await Request(row).send(nowhere)

        assert HIDDEN not in of_other.text and HIDDEN not in of_nowhere.text
        if "space" in {each.name for each in _fields(row)} or "session" in {
            each.name for each in _fields(row)
        }:
            assert (of_nowhere.status_code, code_of(of_nowhere)) == (403, "forbidden")


async def test_a_key_under_a_name_reaches_that_name_and_what_continues_it() -> None:
    async with served() as door:
        for name in ("run", "run/1", "run/1/a", "run/10"):
            await door.ks.space(name).documents.put("plan", name)
        client = await door.caller(under="run/1")

        found = {
            name: (await client.get("/v1/document", params={"space": name, "key": "plan"})).status_code
            for name in ("run", "run/1", "run/1/a", "run/10", "run/1/none")
        }
        listed = (await client.get("/v1/spaces")).json()["items"]
        wider = [await client.get("/v1/spaces", params={"under": each}) for each in ("", "run", "run/10")]
        narrower = (await client.get("/v1/spaces", params={"under": "run/1/a"})).json()["items"]

        assert found == {"run": 403, "run/1": 200, "run/1/a": 200, "run/10": 403, "run/1/none": 404}
        assert [row["name"] for row in listed] == ["run/1", "run/1/a"]
        assert [one.status_code for one in wider] == [403, 403, 403]
        assert [row["name"] for row in narrower] == ["run/1/a"]


async def test_spaces_of_keepstate_itself_are_reached_by_no_key() -> None:
    async with served() as door:
        client = await door.caller(rights=[*ALL, "store"])

        for row in OPERATIONS:
            if "space" in {each.name for each in _fields(row)}:
                response = await Request(row, {"space": "keepstate:keys"}).send(client)
                assert (row.name, response.status_code) == (row.name, 200 if row.is_stream else 422)
                if row.is_stream:
                    assert "event: problem" in response.text


async def test_a_batch_that_completes_a_task_needs_the_right_to_work() -> None:
    async with served() as door:
        space = door.ks.space("run/1")
        await space.queue.put(1, id="t")
        (task,) = await space.queue.claim("w", lease_s=60)
        body = {"operations": [{"do": "complete_task", "id": "t", "token": task.token}]}
        writer, worker = await door.caller("w", ["write"]), await door.caller("v", ["write", "work"])

        refused = await writer.post("/v1/batch", params={"space": "run/1"}, json=body)
        done = await worker.post("/v1/batch", params={"space": "run/1"}, json=body)

        assert (refused.status_code, done.status_code) == (403, 200)


async def test_a_key_without_the_right_to_read_learns_no_version() -> None:
    async with served() as door:
        await door.ks.space("run/1").documents.put("plan", "secret")
        reader, writer = await door.caller("r", ["read", "write"]), await door.caller("w", ["write"])
        where = {"space": "run/1", "key": "plan"}

        told, hidden = [
            await client.put("/v1/document", params=where, json=1, headers={"If-None-Match": "*"})
            for client in (reader, writer)
        ]

        assert (told.status_code, hidden.status_code) == (412, 412)
        assert "etag" in told.headers and "etag" not in hidden.headers
        assert told.headers["etag"].strip('"') not in hidden.text


async def test_a_key_without_the_right_to_read_learns_nothing_of_an_approval_that_it_withdraws() -> None:
    async with served() as door:
        space = door.ks.space("run/1")
        for id in ("one", "two"):
            await space.approvals.ask("secret?", id=id, subject={"sum": "secret"}, need=2)
            await space.approvals.answer(id, True, by="ann", note="secret")
        reader, writer = await door.caller("r", ["read", "write"]), await door.caller("w", ["write"])

        told, hidden = [
            (await client.post("/v1/approval/withdraw", params={"space": "run/1"}, json={"id": id})).json()
            for client, id in ((reader, "one"), (writer, "two"))
        ]

        assert (told["state"], hidden["state"]) == ("withdrawn", "withdrawn")
        assert str(told).count("secret") == 3 and "secret" not in str(hidden)
        assert told["digest"] and not hidden["digest"]


async def test_a_key_without_the_right_to_read_learns_nothing_by_asking_or_answering_again() -> None:
    where, question = {"space": "run/1"}, {"question": "secret?", "id": "q", "subject": "secret", "need": 2}
    async with served() as door:
        reader, writer = await door.caller("r", ["read", "write"]), await door.caller("w", ["write"])
        asked = (await reader.post("/v1/approvals", params=where, json=question)).json()
        person = await door.caller("p", ["answer"])
        for name in ("bob", "ann"):
            answer = {"id": "q", "value": True, "saw": asked["digest"], "note": f"secret of {name}"}
            by = {"On-Behalf-Of": name}
            told = await person.post("/v1/approval/answer", params=where, json=answer, headers=by)
            assert told.status_code == 200 and told.json()["question"] == "" and not told.json()["votes"]
        again = await person.post(
            "/v1/approval/answer", params=where, json=answer, headers={"On-Behalf-Of": "bob"}
        )
        known, hidden = [
            (await client.post("/v1/approvals", params=where, json=question)).json()
            for client in (reader, writer)
        ]

        assert (told.json()["answer"], told.json()["note"]) == (True, "secret of ann")
        assert again.json()["state"] == hidden["state"] == "answered"
        assert "secret" not in again.text and "secret" not in str(hidden) and hidden["is_approved"] is None
        assert str(known).count("secret of") == 3


async def test_a_key_without_the_right_to_read_learns_no_value_from_a_conflict() -> None:
    async with served() as door:
        space = door.ks.space("run/1", record=True)
        await space.documents.put("plan", "secret")
        first = await space.history.find("main")
        await space.history.branch("b")
        await space.documents.put("plan", "secret of main")
        reader, writer = await door.caller("r", ["read", "write"]), await door.caller("w", ["write"])
        edit = {"branch": "b", "expected_head": first.id, "edits": [{"path": ["plan"], "value": "other"}]}
        await reader.post("/v1/history/commit", params={"space": "run/1"}, json=edit)

        told, hidden = [
            await client.post("/v1/history/merge", params={"space": "run/1"}, json={"source": "b"})
            for client in (reader, writer)
        ]

        assert [(each.status_code, code_of(each)) for each in (told, hidden)] == [(409, "merge_conflict")] * 2
        assert "secret" in told.json()["detail"] and "secret" not in hidden.text
        assert "facts" not in told.json(), "values of any size"


async def _until_unknown(door: Served, secret: str) -> None:
    async with asyncio.timeout(60):
        while door.keys.find(secret) is not None:
            await asyncio.sleep(0.01)
