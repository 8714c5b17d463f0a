"""Which classes have blocking twins, and what is written otherwise in them: the tables of generate_sync."""

MODULES = {
    "engine.documents": ("Documents", "Document"),
    "engine.events": ("Events",),
    "engine.streams": ("EventStream",),
    "engine.projection": ("Projection",),
    "engine.history.checkout": ("Checkout",),
    "engine.history.draft": ("Draft",),
    "engine.history.history": ("History",),
    "engine.history.loading": ("Loaded",),
    "engine.history.upkeep": ("Upkeep",),
    "engine.keepstate": ("Keepstate",),
    "engine.lease": ("Lease", "Leases"),
    "engine.parts": ("Parts",),
    "engine.queue": ("Queue", "Task"),
    "engine.space": ("Space",),
    "engine.transaction": ("Transaction",),
    "engine.watch": ("Watch",),
    "managers.manager": ("Manager",),
    "managers.agents": ("AgentStateStore",),
    "managers.recovery": ("AgentRecoveryManager",),
    "managers.knowledge_documents": ("KnowledgeDocuments",),
    "managers.knowledge": ("KnowledgeStateManager",),
    "managers.speech": ("SpeechStateManager",),
    "managers.team_rosters": ("TeamRosters",),
    "managers.teams": ("OrchestrationStateManager",),
    "managers.tool_places": ("ToolPlaces",),
    "managers.tool_retries": ("ToolRetries",),
    "managers.tool_effects": ("ToolEffects",),
    "managers.tool_executions": ("ToolExecutions",),
    "managers.tool_results": ("ToolResults",),
    "managers.tools": ("ToolStateManager",),
    "managers.state": ("StateManager",),
    "managers.workflow_steps": ("WorkflowSteps",),
    "managers.workflows": ("WorkflowStateManager",),
    "sessions.kept": ("Kept",),
    "sessions.bounded": ("BoundedState",),
    "sessions.conversation": ("Conversation",),
    "sessions.machine": ("AgentStateMachine",),
    "sessions.session": ("Session",),
    "sessions.sweeping": ("Sessions",),
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

Twins of the engine stand in `sync` itself, others in a folder named as theirs."""

SEAMS = {
    "Keepstate": {
        *("clock", "decode", "in_colour", "opened", "pickle", "recorder", "runner", "states", "sync"),
        *("everywhere", "expire", "stored_name", "stored_names"),
    },
    **{name: {"clock", "runner"} for name in ("Parts", "Space", "Transaction")},
    "EventStream": {"of", "page"},
    "Queue": {"claim_also"},
    "Watch": {"take", "wake"},
}
"""What the engine's classes offer to one another only."""

REWORDED = {
    "Keepstate": {
        "Made by `keepstate.open`.": "Made by `keepstate.sync.open`.",
        "An asynchronous context manager, and awaitable: both open the store. Without either it opens with "
        "the\nfirst operation. In blocking use `keepstate.sync.open` gives the same without `await`.": (
            "A context manager that closes the store at its end. Threads may share it."
        ),
    },
}
"""What docstrings say in other words, because it is different in blocking use."""


def home_of(module: str) -> str:
    """Returns the module of `sync` where the twins of a module stand."""
    package, _, name = module.partition(".")
    return name.rpartition(".")[2] if package == "engine" else module


HOMES = {name: home_of(module) for module, names in MODULES.items() for name in names}
COLOURS = {
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
}
"""What a mapping does, and how its twin does it."""
MAKING = {"_colour": '"blocking"', "_face": "self"}
"""What a twin gives to the object that it makes, beside what its user gives."""
HELPERS = {
    "cached_property": "functools",
    **dict.fromkeys(("Generator", "Iterator"), "collections.abc"),
    **dict.fromkeys(("Any", "TypeVar"), "typing"),
    **dict.fromkeys(("entered", "finish", "finish_each"), "keepstate._finish"),
    **dict.fromkeys(("Twin", "around", "around_generic", "entered_once"), "keepstate.sync.twin"),
    **dict.fromkeys(("inner_of", "receiving"), "keepstate.sync.twin"),
}
"""What twins are made with, by where it comes from."""
