"""Spans and metrics of a store, by the exporters of the SDK that keep them in memory."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

import keepstate
from keepstate import TaskSpec, sync
from keepstate.adapters.opentelemetry import RequestSpans, Telemetry
from keepstate.engine.queue.queue import Task
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ConflictError, InvalidError, NotFoundError
from keepstate.server import Key, Keys, create_app
from keepstate.server import app as server_app
from tests.architecture.test_costs import Cost, counted_stores
from tests.server.test_running import COMMAND

SECRET = "the-secret"


@dataclass
class Traced:
    """A store, what it has told, and the providers that heard of it."""

    ks: Keepstate
    telemetry: Telemetry
    tracers: TracerProvider
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """Return ended spans, in the order of their ends."""
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]

    def span(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def totals(self) -> dict[tuple[str, str], float]:
        """Return the totals of counters, and the counts of histograms, by name and operation or end."""
        data = self.reader.get_metrics_data()
        found: dict[tuple[str, str], float] = {}
        for metric in (
            [each for one in data.resource_metrics for scope in one.scope_metrics for each in scope.metrics]
            if data
            else ()
        ):
            for point in metric.data.data_points:
                labels: dict[str, Any] = dict(point.attributes or {})
                label = labels.get("db.operation.name") or labels.get("keepstate.task.ended_as") or ""
                count = getattr(point, "count", None)
                value = point.value if count is None else count  # type: ignore[union-attr]
                found[metric.name, str(label)] = found.get((metric.name, str(label)), 0) + value
        return found

    def labels(self) -> set[str]:
        """Return all values of labels of metrics."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            str(value)
            for one in data.resource_metrics
            for scope in one.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            for value in (point.attributes or {}).values()
        }


@pytest.fixture
def opened() -> list[Keepstate]:
    """The handles that are closed when the test ends, still in its loop."""
    return []


@pytest.fixture
def traced(opened: list[Keepstate]) -> Iterator[Traced]:
    """Yield a store in memory that is observed."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry("memory://", tracer_provider=tracers, meter_provider=meters)
    ks = keepstate.open("memory://", observe=telemetry, meta=telemetry.meta)
    opened.append(ks)
    yield Traced(ks, telemetry, tracers, exporter, reader)
    tracers.shutdown()
    meters.shutdown()


def parent_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else format_span_id(span.parent.span_id)


def id_of(span: ReadableSpan) -> str:
    return format_span_id(span.get_span_context().span_id)  # type: ignore[union-attr]


def traceparent_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    flags = int(context.trace_flags)
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{flags:02x}"


async def test_each_operation_has_a_span_within_that_of_the_caller(traced: Traced) -> None:
    tracer = traced.tracers.get_tracer("test")
    space = traced.ks.tenant("acme").space("session/s 1")
    with tracer.start_as_current_span("agent.step"):
        await space.documents.put("plan", SECRET)
        await space.transact(lambda tx: tx.documents.put("plan", 2))

    step, put = traced.span("agent.step"), traced.spans("documents.put")[0]
    inner, block = traced.spans("documents.put")[1], traced.span("space.transaction")
    (transact,) = [span for span in traced.spans() if span.name == "space.transact"]
    assert put.kind is SpanKind.INTERNAL
    assert dict(put.attributes or {}) == {
        "db.system.name": "keepstate", "db.operation.name": "documents.put", "keepstate.tenant": "acme",
        "keepstate.space": "session/s 1", "gen_ai.conversation.id": "s 1", "session.id": "s 1",
        "keepstate.revision": 2,
    }  # fmt: skip
    assert (parent_of(put), parent_of(transact)) == (id_of(step), id_of(step))
    assert (parent_of(inner), parent_of(block)) == (id_of(block), id_of(transact))
    assert SECRET not in str([span.to_json() for span in traced.spans()])


async def test_a_commit_and_its_span_name_each_other(traced: Traced) -> None:
    tracer = traced.tracers.get_tracer("test")
    space = traced.ks.space("run/1", record=True)
    with tracer.start_as_current_span("agent.step"):
        await space.documents.put("plan", 1)
        async with space.transaction() as tx:
            await tx.documents.put("plan", 2)
    await space.documents.put("plan", 3)
    await traced.ks.space("by hand").history.commit({"plan": 1})

    first, second, third = [commit async for commit in space.history.log(reverse=True)]
    by_hand = await traced.ks.space("by hand").history.find()
    puts, block = traced.spans("documents.put"), traced.span("space.transaction")
    assert first.meta["traceparent"] == traceparent_of(puts[0])
    assert (puts[0].attributes or {})["keepstate.commit"] == first.id
    assert second.meta["traceparent"].split("-")[1] == traceparent_of(block).split("-")[1]
    assert (block.attributes or {})["keepstate.commit"] == second.id
    assert third.meta["traceparent"] == traceparent_of(puts[2])
    assert (traced.span("history.commit").attributes or {})["keepstate.commit"] == by_hand.id
    found = [one.id async for one in space.history.log(meta={"traceparent": traceparent_of(puts[0])})]
    assert found == [first.id]


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
async def test_an_attempt_links_to_the_span_that_put_the_task(traced: Traced, kind: str) -> None:
    queue = traced.ks.space("run/1").queue
    stop = asyncio.Event()

    async def work(task: Task) -> None:
        await traced.ks.space("run/2").documents.put("done", task.id)
        stop.set()

    def work_plainly(task: Any) -> None:
        with traced.tracers.get_tracer("test").start_as_current_span("inside"):
            stop.set()

    with traced.tracers.get_tracer("test").start_as_current_span("request"):
        await queue.put("x", id="t", kind="mail")
    with traced.tracers.get_tracer("test").start_as_current_span("worker"):
        await queue.run(work if kind == "coroutine" else work_plainly, idle_s=0.1)

    put, attempt = traced.span("queue.put"), traced.span("queue.process")
    inner = traced.span("documents.put" if kind == "coroutine" else "inside")
    assert (attempt.name, attempt.kind, attempt.parent) == ("queue.process mail", SpanKind.CONSUMER, None)
    (link,) = attempt.links
    assert (link.context.trace_id, link.context.span_id) == (
        put.get_span_context().trace_id, put.get_span_context().span_id,  # type: ignore[union-attr]
    )  # fmt: skip
    assert (attempt.attributes or {})["keepstate.task.ended_as"] == "completed"
    assert (attempt.attributes or {})["keepstate.task.id"] == "t"
    assert parent_of(inner) == id_of(attempt)
    assert traced.totals()["keepstate.tasks.processed", "completed"] == 1


async def test_a_task_keeps_its_place_in_a_trace_through_its_life(traced: Traced) -> None:
    queue = traced.ks.space("run/1").queue
    with traced.tracers.get_tracer("test").start_as_current_span("request"):
        await queue.put("x", id="t")
        async with traced.ks.space("run/1").transaction() as tx:
            await tx.queue.put("y", id="in a transaction")
    placed = traceparent_of(traced.spans("queue.put")[0])
    with traced.tracers.get_tracer("test").start_as_current_span("another"):
        (task,) = await queue.claim("w", lease_s=60)
        first = task.traceparent
        await task.fail("no", retry_in_s=0)
        again = {task.id: task.traceparent for task in await queue.claim("w", lease_s=60, count=2)}
    with traced.tracers.get_tracer("test").start_as_current_span("operator"):
        await queue.cancel("t")
        await queue.rerun("t", as_id="again")
        await traced.ks.space("run/3").approvals.ask("Go?", id="q", then=TaskSpec(1))
    (rerun,) = await queue.claim("w", lease_s=60)
    await traced.ks.space("run/3").approvals.answer("q", True, by="ann")
    (decided,) = await traced.ks.space("run/3").queue.claim("w", lease_s=60)
    plain = keepstate.open(await traced.ks.opened())
    await plain.space("run/2").queue.put("z")
    (untraced,) = await plain.space("run/2").queue.claim("w", lease_s=60)

    await plain.close()

    assert first == again["t"] == placed
    assert again["in a transaction"] == traceparent_of(traced.spans("queue.put")[1])
    assert rerun.traceparent == traceparent_of(traced.span("queue.rerun"))
    assert decided.traceparent == traceparent_of(traced.span("approvals.ask"))
    assert untraced.traceparent is None


async def test_errors_have_codes_and_no_texts(traced: Traced) -> None:
    space = traced.ks.space("run/1")
    await space.documents.put(SECRET, 1)
    with pytest.raises(ConflictError):
        await space.documents.put(SECRET, 2, expected_version=0)
    with pytest.raises(NotFoundError):
        await space.documents.update("none " + SECRET, lambda old: old)
    with pytest.raises(ZeroDivisionError):
        await space.transact(lambda tx: 1 / 0)

    conflict, absent, broken = (
        traced.spans("documents.put")[1],
        traced.span("documents.update"),
        next(span for span in traced.spans() if span.name == "space.transact"),
    )
    told = [
        (span.status.status_code, (span.attributes or {})["error.type"])
        for span in (conflict, absent, broken)
    ]
    assert told == [
        (StatusCode.ERROR, "conflict"), (StatusCode.ERROR, "not_found"),
        (StatusCode.ERROR, "ZeroDivisionError"),
    ]  # fmt: skip
    assert SECRET not in str([span.to_json() for span in traced.spans()])
    assert all(not span.events and span.status.description is None for span in traced.spans())


async def test_metrics_count_conflicts_retries_losses_and_dead_tasks_without_names(traced: Traced) -> None:
    space = traced.ks.tenant("the-tenant").space("the-space", author="the-author")
    await space.documents.put("the-key", 1)
    with pytest.raises(ConflictError):
        await space.documents.put("the-key", 2, expected_version=0)
    calls = 0

    async def disturbed(tx: Any) -> None:
        nonlocal calls
        calls += 1
        await tx.documents.get("the-key")
        if calls == 1:
            await space.documents.put("the-key", 3)
        await tx.documents.put("the-key", 4)

    await space.transact(disturbed)
    await space.queue.put(1, id="dies", kind="the-kind", max_attempts=1)
    await space.queue.put(1, id="is-lost", kind="the-kind")

    async def work(task: Task) -> None:
        if task.id == "is-lost":
            await space.queue.cancel(task.id)
            await asyncio.sleep(60)  # until the worker hears of it
        raise ValueError("the-text")

    await space.queue.run(work, idle_s=0.1, worker="the-worker")

    totals = traced.totals()
    assert totals["keepstate.conflicts", "documents.put"] == 1
    assert totals["keepstate.retries", "space.transact"] == 1
    assert totals["keepstate.tasks.dead", ""] == 1
    assert (
        totals["keepstate.tasks.processed", "dead"] == totals["keepstate.tasks.processed", "cancelled"] == 1
    )
    assert totals["db.client.operation.duration", "documents.put"] == 5
    assert [value for value in traced.labels() if "the-" in value] == []


async def test_a_lost_claim_is_counted(traced: Traced) -> None:
    space = traced.ks.space("run/1")
    await space.queue.put(1, id="t")
    (task,) = await space.queue.claim("w", lease_s=60)
    await task.release()
    with pytest.raises(ConflictError):
        await space.queue.complete(keepstate.Claim(task.id, task.token))

    assert traced.totals()["keepstate.leases.lost", "queue.complete"] == 1


async def test_streams_and_workers_have_no_span_but_their_parts_have(traced: Traced) -> None:
    space = traced.ks.space("run/1")
    await space.events.append("a")
    async for _ in space.events.follow():
        break
    listing = space.documents.keys()
    keys = [key async for key in listing]
    await space.queue.run(_nothing, idle_s=0.05)

    assert keys == []
    assert [span.name for span in traced.spans()] == ["events.append", "documents.keys"]
    assert not traced.telemetry._spans  # pyright: ignore[reportPrivateUsage]


async def _nothing(task: Task) -> None:
    return None


def test_blocking_handles_are_traced_alike() -> None:
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracer_provider=tracers)
    with sync.open("memory://", observe=telemetry, meta=telemetry.meta) as ks:
        with tracers.get_tracer("test").start_as_current_span("step"):
            ks.space("run/1", record=True).documents.put("plan", 1)
        (commit,) = ks.space("run/1").history.log()

    put = next(span for span in exporter.get_finished_spans() if span.name == "documents.put")
    assert commit.meta == {"traceparent": traceparent_of(put)}
    assert (put.attributes or {})["keepstate.commit"] == commit.id


def test_telemetry_is_pickled_without_a_password_and_rejects_what_is_not_a_url() -> None:
    telemetry = pickle.loads(pickle.dumps(Telemetry("postgresql://ann:the-password@host/agents")))

    assert telemetry._system == {"db.system.name": "postgresql"}  # pyright: ignore[reportPrivateUsage]
    assert b"the-password" not in pickle.dumps(telemetry)
    with pytest.raises(InvalidError):
        Telemetry("no url")


def test_nothing_of_opentelemetry_is_imported_without_it() -> None:
    code = (
        "import sys, keepstate, keepstate.sync, keepstate.server\n"
        "ks = keepstate.sync.open('memory://')\n"
        "ks.space('run').queue.put(1); ks.space('run', record=True).documents.put('a', 1)\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


# ---- the server


async def test_a_request_has_a_span_above_its_operations_and_goes_on_with_the_trace_of_its_client(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trace_by(app: Any) -> RequestSpans:
        return RequestSpans(app, server_app._describe, tracer_provider=traced.tracers)  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(server_app, "_traced", trace_by)
    ks = keepstate.open("memory://", values="builtin", observe=traced.telemetry, meta=traced.telemetry.meta)
    async with ks:
        keys = Keys(ks)
        app = create_app(ks, keys=keys, tracing=True)
        secret = await keys.add(Key("ann", frozenset({"read", "write"})))
        await ks.space("run/1", record=True).documents.put("plan", 0)
        async with (
            app.running(),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
        ):
            await client.get("/healthz")
            refused = await client.get("/v1/document", params={"space": SECRET, "key": SECRET})
            client.headers["Authorization"] = f"Bearer {secret}"
            traced.exporter.clear()
            context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            written = await client.put(
                "/v1/document",
                params={"space": "run/1", "key": "plan"},
                json=1,
                headers={"traceparent": context},
            )
            wrong = await client.get(f"/{SECRET}")
            said = await client.post(
                "/v1/conversation",
                params={"session": "talk"},
                json={"message": {"role": "user", "content": SECRET}},
            )
        commit = await ks.space("run/1").history.find()

    request, put = traced.span("PUT"), traced.spans("documents.put")[0]
    assert (refused.status_code, written.status_code, wrong.status_code) == (401, 200, 404)
    assert (request.name, request.kind) == ("PUT putDocument", SpanKind.SERVER)
    assert dict(request.attributes or {}) == {
        "http.request.method": "PUT", "http.response.status_code": 200, "keepstate.operation": "putDocument",
        "keepstate.key": "ann",
    }  # fmt: skip
    assert traceparent_of(request).split("-")[1] == context.split("-")[1]
    assert parent_of(request) == context.split("-")[2]
    assert parent_of(put) == id_of(request)
    talked = [span for span in traced.spans() if (span.attributes or {}).get("session.id") == "talk"]
    assert said.status_code == 200 and id_of(traced.span("POST")) in map(parent_of, talked)
    assert commit.meta["traceparent"] == traceparent_of(put)
    assert SECRET not in str([span.to_json() for span in traced.spans()])


async def serve_with(tmp_path: Path, *options: str, **variables: str) -> tuple[int, str, str]:
    """Run a server process for one request, and return its exit code and what it printed."""
    url = f"sqlite:///{tmp_path}/{len([*tmp_path.iterdir()])}.db"
    async with keepstate.open(url, values="builtin") as ks:
        secret = await Keys(ks).add(Key("ann", frozenset({"read", "write"})))
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "serve", "--port", "0", "--json", "--drain-s", "0", "--url", url, *options),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **variables},
    )  # fmt: skip
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 60)
    if line:
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(base_url=json.loads(line)["url"], headers=headers) as client:
            await client.put("/v1/document", params={"space": "run/1", "key": "plan"}, json=1)
        process.send_signal(signal.SIGTERM)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def test_a_server_process_sends_traces_and_metrics_where_the_environment_says(tmp_path: Path) -> None:
    code, out, err = await serve_with(
        tmp_path, OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="console", OTEL_SERVICE_NAME="agents"
    )

    assert (code, err) == (0, "")
    assert '"name": "PUT putDocument"' in out and '"name": "documents.put"' in out
    assert '"service.name": "agents"' in out
    assert '"name": "db.client.operation.duration"' in out


async def test_a_server_process_is_silent_without_a_wish_and_names_what_is_missing(tmp_path: Path) -> None:
    quiet = await serve_with(tmp_path, OTEL_SDK_DISABLED="true", OTEL_TRACES_EXPORTER="console")
    missing = await serve_with(tmp_path, "--telemetry")
    wrong = await serve_with(tmp_path, "--telemetry", OTEL_TRACES_EXPORTER="nowhere")

    assert quiet == (0, "", "")
    assert missing[0] and "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http" in missing[2]
    assert wrong[0] and "OTEL_TRACES_EXPORTER is 'nowhere', which is not installed" in wrong[2]


# ---- cost


CALLS: dict[str, Any] = {
    "get": lambda ks: ks.space("a").documents.get("x"),
    "put": lambda ks: ks.space("a").documents.put("x", 2),
    "update": lambda ks: ks.space("a").documents.update("x", lambda old: old + 1),
    "transact": lambda ks: ks.space("a").transact(lambda tx: tx.documents.put("x", 3)),
    "put of a recorded space": lambda ks: ks.space("r", record=True).documents.put("x", 2),
    "append": lambda ks: ks.space("a").events.append("e"),
    "put a task": lambda ks: ks.space("a").queue.put("p", id="t"),
    "commit": lambda ks: ks.space("c").history.commit({"x": 1}),
}


def test_telemetry_makes_no_call_of_the_store_and_writes_nothing_outside_a_trace(tmp_path: Path) -> None:
    costs: dict[str, dict[str, Cost]] = {}
    for name, options in {
        "plain": {},
        "observed": _options(TracerProvider()),
        "no sdk": _options(None),
    }.items():
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        with counted_stores(folder) as open_store:
            store = open_store()
            with sync.open(store, **options) as ks:
                ks.space("a").documents.put("x", 1)
                ks.space("r", record=True).documents.put("x", 1)
                costs[name] = {call: store.measure(partial(run, ks)) for call, run in CALLS.items()}

    assert costs["no sdk"] == costs["plain"]
    assert {call: cost[:2] for call, cost in costs["observed"].items()} == {
        call: cost[:2] for call, cost in costs["plain"].items()
    }
    added = {
        call: (cost.written or 0) - (costs["plain"][call].written or 0)
        for call, cost in costs["observed"].items()
    }
    assert {call: count for call, count in added.items() if count} == {
        "put of a recorded space": 74, "commit": 74, "put a task": 57,
    }  # fmt: skip


def _options(tracers: TracerProvider | None) -> dict[str, Any]:
    telemetry = Telemetry(tracer_provider=tracers)
    return {"observe": telemetry, "meta": telemetry.meta}
