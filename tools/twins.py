"""Which classes have blocking twins, and what is written otherwise in them: the tables of generate_sync."""

MODULES = {
    "binding": ("StorageOptions", "Resource"),
    "engine.approvals.approval_reads": ("ApprovalReads",),
    "engine.approvals.approval_links": ("ApprovalLinks",),
    "engine.approvals.approvals": ("Approvals",),
    "engine.documents.collection": ("Collection",),
    "engine.documents.documents": ("Documents", "Document"),
    "engine.events.events": ("EventStream", "Events"),
    "engine.space.projection": ("Projection",),
    "engine.history.checkout": ("Loaded", "Checkout"),
    "engine.history.draft": ("Draft",),
    "engine.history.references": ("References",),
    "engine.history.search": ("Search",),
    "engine.history.upkeep": ("Upkeep",),
    "engine.history.history": ("History",),
    "engine.space.keepstate": ("Keepstate",),
    "engine.space.queues": ("Queues",),
    "engine.queue.lease": ("Lease", "Leases"),
    "engine.queue.task_control": ("TaskControl",),
    "engine.queue.task_reads": ("TaskReads",),
    "engine.queue.rules": ("RuleControl",),
    "engine.queue.queue": ("Queue", "Task"),
    "engine.queue.schedules": ("Schedules",),
    "engine.queue.step_control": ("StepControl",),
    "engine.queue.steps": ("TaskSteps",),
    "engine.space.space": ("Parts", "Transaction", "Space"),
    "engine.usage.ledger": ("UsageLedger",),
    "engine.usage.spends": ("Spend",),
    "engine.documents.watch": ("Watch",),
    "managers.binding": ("ManagerStorage",),
    "managers.manager": ("Manager",),
    "managers.agents": ("AgentStateStore", "AgentRecoveryManager"),
    "managers.knowledge.manager": ("KnowledgeStateManager",),
    "managers.speech.manager": ("SpeechStateManager",),
    "managers.teams.manager": ("OrchestrationStateManager",),
    "managers.tools.manager": ("ToolStateManager",),
    "managers.state.manager": ("StateManager",),
    "managers.workflows.manager": ("WorkflowStateManager",),
    "memories.memories": ("Memories",),
    "sessions.conversation": ("BoundedState", "Conversation"),
    "sessions.machine": ("AgentStateMachine",),
    "sessions.replies": ("Reply",),
    "sessions.session": ("Session",),
    "sessions.sweep": ("Sessions",),
    "sessions.threads": ("Threads", "ThreadMessages"),
    "sessions.user": ("UserState",),
    "sessions.validated": ("ValidatedState",),
    "sessions.versioned": ("VersionedState",),
    "typed.changes": ("StateWatch",),
    "typed.profiles": ("ProfileAccess",),
    "typed.run": ("AgentRun",),
    "typed.state": ("KeyedState",),
    "typed.tools": ("ToolCallContext",),
}
"""The classes that have twins, by the module that they stand in.

Twins of the engine stand in `sync` itself, those of managers in one folder, others in a folder named as
theirs."""

SEAMS = {
    "Keepstate": {
        *("clock", "decode", "for_blocking", "in_mode", "opened", "pickle", "recorder", "runner", "states"),
        *("everywhere", "expire", "stored_name", "stored_names", "begin_operation", "index", "note_subjects"),
        *("space_names", "tenant_ids"),
    },
    **{name: {"clock", "runner", "executor"} for name in ("Parts", "Space", "Transaction")},
    "ApprovalLinks": {"linked", "require_right"},
    "Approvals": {"discard", "expire", "linked", "require_right"},
    "Documents": {"change_of", "convert", "convert_listed", "executor", "update_typed"},
    "EventStream": {"of", "page", "executor"},
    "Events": {"page", "find", "executor"},
    "Lease": {"kept_alive"},
    "UsageLedger": {"guarded"},
    "Spend": {"hold", "let_go", "settle", "settle_despite_cancel", "settle_in"},
    "Queue": {
        *("claim_with", "executor", "next_look_s", "suspend"),
        *("begin_transaction", "change_steps", "held_record"),
    },
    "Task": {"ended_as", "executor", "suspended", "suspension"},
    "TaskSteps": {"suspended", "suspension"},
    "Watch": {"take", "wake"},
}
"""What the engine's classes offer to one another only."""

REWORDED = {
    "Keepstate": {
        "Made by `keepstate.open`.": "Made by `keepstate.sync.open`.",
        "An asynchronous context manager, and awaitable: both open the store. Otherwise the first operation "
        "opens\nit. For blocking code, `keepstate.sync.open` returns the same without `await`.": (
            "A context manager that closes the store at its end. Threads may share it."
        ),
    },
}
"""What docstrings say in other words, because it is different in blocking use."""


def home_of(module: str) -> str:
    """Return the module of `sync` where the twins of a module stand."""
    package, *rest = module.split(".")
    if package == "engine":
        return rest[-1]
    if package == "managers" and len(rest) == 2:
        folder, name = rest
        return f"managers.{folder}" if name in ("manager", "store") else f"managers.{folder}_{name}"
    return module


HOMES = {name: home_of(module) for module, names in MODULES.items() for name in names}
MODES = {
    "AsyncIterator": "Iterator",
    "AsyncGenerator": "Generator",
}
DUNDERS = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
ITEMS = {
    "__getitem__": "return {inner}[{0}]",
    "__setitem__": "{inner}[{0}] = {1}",
    "__delitem__": "del {inner}[{0}]",
    "__iter__": "return iter({inner})",
    "__len__": "return len({inner})",
    "_repr_html_": "return {inner}._repr_html_()  # pyright: ignore[reportPrivateUsage]",
}
"""What a mapping does, and how its twin does it."""
MAKING = {"_mode": '"blocking"', "_face": "self"}
"""What a twin gives to the object that it makes, beside what its user gives."""
HELPERS = {
    "cached_property": "functools",
    **dict.fromkeys(("Generator", "Iterator"), "collections.abc"),
    **dict.fromkeys(("Any", "TypeVar"), "typing"),
    **dict.fromkeys(("entered", "finish", "finish_each"), "keepstate._finish"),
    **dict.fromkeys(("Twin", "around", "around_generic", "single_use"), "keepstate.sync.twin"),
    **dict.fromkeys(("inner_of", "inner_options", "receiving", "transaction_twin"), "keepstate.sync.twin"),
}
"""What twins are made with, by where it comes from."""
