"""Names of attributes and metrics, and the attributes of an operation.

The names are those of the semantic conventions of OpenTelemetry where it has one. The ones for generative AI
are still in development there, and stand here only. Own names begin with `keepstate.`.
"""

from __future__ import annotations

from typing import Final

from keepstate.engine.kernel.observation import Operation
from keepstate.errors import KeepstateError
from keepstate.stores.urls import StoreUrl

DB_SYSTEM: Final = "db.system.name"
DB_OPERATION: Final = "db.operation.name"
ERROR_TYPE: Final = "error.type"
HTTP_METHOD: Final = "http.request.method"
HTTP_STATUS: Final = "http.response.status_code"
CONVERSATION: Final = "gen_ai.conversation.id"
SESSION: Final = "session.id"
AGENT: Final = "gen_ai.agent.id"
WORKFLOW: Final = "gen_ai.workflow.name"
SPACE: Final = "keepstate.space"
TENANT: Final = "keepstate.tenant"
REVISION: Final = "keepstate.revision"
COMMIT: Final = "keepstate.commit"
ATTEMPTS: Final = "keepstate.attempts"
TASK: Final = "keepstate.task.id"
TASK_KIND: Final = "keepstate.task.kind"
TASK_ATTEMPT: Final = "keepstate.task.attempt"
TASK_END: Final = "keepstate.task.ended_as"
OPERATION: Final = "keepstate.operation"
KEY: Final = "keepstate.key"

DURATION: Final = "db.client.operation.duration"
CONFLICTS: Final = "keepstate.conflicts"
RETRIES: Final = "keepstate.retries"
LOST: Final = "keepstate.leases.lost"
DEAD: Final = "keepstate.tasks.dead"
PROCESSED: Final = "keepstate.tasks.processed"

_SYSTEMS: Final = {"sqlite": "sqlite", "postgresql": "postgresql", "redis": "redis"}
_OF_SUBJECTS: Final = {
    "session": (CONVERSATION, SESSION),
    "thread": (CONVERSATION, SESSION),
    "agent": (AGENT,),
    "workflow": (WORKFLOW,),
}
"""The attributes that a subject's id has, by the kind with which the name of its own space begins."""


def system_of(url: StoreUrl) -> str:
    """Return the name of the database of a URL; `keepstate` for memory, files and servers of keepstate."""
    return _SYSTEMS.get(url.backend, "keepstate")


def beginning_of(operation: Operation) -> dict[str, str | int]:
    """Return what is known of an operation when it begins."""
    found: dict[str, str | int] = {DB_OPERATION: operation.name}
    if operation.space is not None:
        found[SPACE] = operation.space
        kind, _, id = operation.space.partition("/")
        if id:
            found |= dict.fromkeys(_OF_SUBJECTS.get(kind, ()), id)
    if operation.tenant is not None:
        found[TENANT] = operation.tenant
    if (task := operation.task) is not None:
        found |= {TASK: task.id, TASK_KIND: task.kind, TASK_ATTEMPT: task.attempt}
    return found


def end_of(operation: Operation) -> dict[str, str | int]:
    """Return what is known of an operation at its end."""
    found: dict[str, str | int] = {}
    if operation.revision:
        found[REVISION] = operation.revision
    if operation.commit is not None:
        found[COMMIT] = operation.commit
    if operation.attempts > 1:
        found[ATTEMPTS] = operation.attempts
    if operation.ended_as is not None:
        found[TASK_END] = operation.ended_as
    return found


def error_type_of(error: BaseException) -> str:
    """Return the stable code of an error of ours, and the class of another one, without its text."""
    return error.code if isinstance(error, KeepstateError) else type(error).__qualname__
