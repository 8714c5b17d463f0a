"""Speech sessions: recognition, synthesis, and the conversation.

A session has one document for itself and one each for recognition, synthesis and the conversation, so that
fast updates of one do not conflict with the others. The turns are a branch of the space's history: a turn
costs the same however long the conversation is, and the conversation can be read as of each turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar, Final

from keepstate.engine.kernel.arguments import check_text, require_instance
from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError, TransitionError
from keepstate.managers.arguments import check_interval
from keepstate.managers.binding import Namespace
from keepstate.managers.callbacks import LatestCallback, LatestFollower, Subscription
from keepstate.managers.manager import Manager
from keepstate.managers.names import new_id
from keepstate.managers.records import check_record
from keepstate.managers.speech.records import (
    SESSION_STEPS,
    TRANSCRIPTION_STEPS,
    AudioSession,
    AudioSessionStatus,
    StreamingMode,
    STTState,
    TTSState,
    VoiceConversationState,
    check_stt,
    check_tts,
)

_TRANSCRIPT: Final = "transcript"
_TURNS: Final = "turns"


class SpeechStateManager(Manager):
    """Speech sessions, each in its space `speech/<id>`.

    Updates of a session that has ended raise `TransitionError`. Updates of a session that was never created
    raise `NotFoundError`.

    Args:
        persistence: Storage of the sessions; see `StateManager`.
        url: The URL, if `persistence` names a backend.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: A space or transaction that stores all sessions, in place of a store.
    """

    _kind: ClassVar[str] = "speech"
    _records: bool = False

    # ---- sessions

    async def create_session(
        self,
        session_type: str,
        streaming_mode: StreamingMode = StreamingMode.NONE,
        config: Mapping[str, Any] | None = None,
        *,
        session_id: str | None = None,
    ) -> str:
        """Create a session and return its id.

        Args:
            session_type: Type of the session, as the application names it.
            streaming_mode: Directions in which audio streams.
            config: Data of the application.
            session_id: Id of the session; by default a new one.

        Raises:
            AlreadyExistsError: A session with this id exists.
        """
        check_record("streaming_mode", streaming_mode, StreamingMode)
        if config is not None:
            require_instance("config", config, Mapping)
        id = new_id(self._clock) if session_id is None else session_id
        session = AudioSession(
            id, check_text("session_type", session_type), streaming_mode, dict(config or {})
        )

        async def work(speech: Namespace) -> None:
            if await speech.get("session") is not None:
                raise AlreadyExistsError(
                    f"session {id!r} exists already. Use another id, or none for a new one."
                )
            kept = replace(session, created_at=await speech.space.now())
            await speech.put(kept, "session")

        await self._run_together(self._namespace(id), work, message="create the session")
        return id

    async def get_session(self, session_id: str) -> AudioSession | None:
        """Return a session, or None if there is none with this id."""
        session: AudioSession | None = await self._get(session_id, "session")
        return session

    async def list_sessions(self, status: AudioSessionStatus | None = None) -> list[AudioSession]:
        """Return all sessions, or those with a status, ordered by id."""
        if status is not None:
            check_record("status", status, AudioSessionStatus)
        found = [await self.get_session(id) for id in await self._ids()]
        return [each for each in found if each is not None and status in (None, each.status)]

    async def update_session_status(self, session_id: str, status: AudioSessionStatus) -> AudioSession:
        """Set the status of a session, and return the session. The same status again does nothing.

        Raises:
            TransitionError: The new status cannot follow the current one.
        """
        check_record("status", status, AudioSessionStatus)
        return await self._move_to(session_id, status, None)

    async def end_session(self, session_id: str, reason: str | None = None) -> AudioSession:
        """End a session, and return it. Its synthesis is then not speaking.

        Ending it again for the same reason does nothing.

        Raises:
            TransitionError: The session has failed, or ended for another reason.
        """
        return await self._move_to(session_id, AudioSessionStatus.ENDED, reason)

    async def delete_session(self, session_id: str) -> bool:
        """Remove a session with its conversation, and return whether it existed."""
        return await self._forget(self._namespace(session_id), [_TRANSCRIPT])

    async def _move_to(self, session_id: str, status: AudioSessionStatus, reason: str | None) -> AudioSession:
        async def work(speech: Namespace) -> AudioSession:
            session, tts = await _read(speech, "session", "tts")
            session = _require_session(speech, session)
            if session.status is status:
                if SESSION_STEPS.is_final(status) and reason not in (None, session.reason):
                    raise TransitionError(
                        f"session {speech.id!r} has already ended; its reason is {session.reason!r}",
                        current=status.name,
                        wanted=status.name,
                    )
                return session
            SESSION_STEPS.check(speech.id, session.status, status)
            session = replace(session, status=status)
            if SESSION_STEPS.is_final(status):
                session = replace(session, reason=reason, ended_at=await speech.space.now())
                if tts is not None and tts.is_speaking:
                    await speech.put(replace(tts, is_speaking=False), "tts")
            await speech.put(session, "session")
            return session

        return await self._run_together(
            self._namespace(session_id), work, message=f"session is {status.value}"
        )

    # ---- recognition and synthesis

    async def update_stt_state(self, stt_state: STTState) -> None:
        """Replace the state of the recognition.

        Raises:
            TransitionError: The new status cannot follow the current one, or the session has ended.
        """
        check_stt(stt_state)
        await self._run_together(
            self._namespace(stt_state.session_id), lambda speech: _put_stt(speech, stt_state)
        )

    async def get_stt_state(self, session_id: str) -> STTState | None:
        """Return the state of the recognition, or None if there is none."""
        state: STTState | None = await self._get(session_id, "stt")
        return state

    async def update_tts_state(self, tts_state: TTSState) -> None:
        """Replace the state of the synthesis.

        Raises:
            TransitionError: The session has ended.
        """
        check_tts(tts_state)
        await self._run_together(
            self._namespace(tts_state.session_id), lambda speech: _put_tts(speech, tts_state)
        )

    async def get_tts_state(self, session_id: str) -> TTSState | None:
        """Return the state of the synthesis, or None if there is none."""
        state: TTSState | None = await self._get(session_id, "tts")
        return state

    # ---- the conversation

    async def update_conversation_state(self, conversation_state: VoiceConversationState) -> None:
        """Replace the state of a conversation, with recognition and synthesis if they are in it.

        Additional turns are appended to the transcript. If the state has only the first turns, or none, the
        newer turns and a higher `turn_count` stay, because other callers have added them. If a turn differs,
        the transcript is replaced, and its history keeps the old one. To add one turn, `add_turn` costs less.

        Raises:
            TransitionError: The session has ended, or the status of the recognition cannot follow the current
                one.
        """
        state = conversation_state
        check_record("conversation_state", state, VoiceConversationState)
        parts: list[tuple[str, STTState | TTSState]] = []
        if state.stt_state is not None:
            parts.append(("stt_state", check_stt(state.stt_state)))
        if state.tts_state is not None:
            parts.append(("tts_state", check_tts(state.tts_state)))
        for name, part in parts:
            if part.session_id != state.session_id:
                raise InvalidError(
                    f"`{name}` belongs to session {part.session_id!r}, not {state.session_id!r}"
                )

        async def work(speech: Namespace) -> None:
            await _require_live(speech)
            if state.stt_state is not None:
                await _put_stt(speech, state.stt_state)
            if state.tts_state is not None:
                await _put_tts(speech, state.tts_state)
            count = state.turn_count
            if not await _write_turns(speech, state.transcript):
                (before,) = await _read(speech, "conversation")
                count = max(count, before.turn_count if before else 0)
            kept = replace(state, stt_state=None, tts_state=None, transcript=[], turn_count=count)
            await speech.put(kept, "conversation")

        await self._run_together(self._namespace(state.session_id), work)

    async def add_turn(self, session_id: str, role: str, content: str, **more: Any) -> int:
        """Add a turn to a conversation, and return the number of turns. The cost does not depend on it.

        Args:
            session_id: The session.
            role: Speaker of the turn.
            content: Text of the turn.
            more: Other fields of the turn.
        """
        turn = {"role": check_text("role", role), "content": check_text("content", content), **more}

        async def work(speech: Namespace) -> int:
            await _require_live(speech)
            (kept,) = await _read(speech, "conversation")
            state = kept or VoiceConversationState(speech.id)
            state = replace(state, turn_count=state.turn_count + 1, current_speaker=role)
            await speech.put(state, "conversation")
            branch = speech.label(_TRANSCRIPT)
            await speech.space.history.append(_TURNS, turn, branch=branch, message=f"turn of {role}"[:200])
            count: int = state.turn_count
            return count

        return await self._run_together(self._namespace(session_id), work)

    async def get_conversation_state(self, session_id: str) -> VoiceConversationState | None:
        """Return a conversation with all its parts and turns, or None if there is none."""
        speech = self._namespace(session_id)
        state, stt, tts = await _read(speech, "conversation", "stt", "tts")
        if state is None:
            return None
        whole: VoiceConversationState = replace(
            state, stt_state=stt, tts_state=tts, transcript=await _read_turns(speech)
        )
        return whole

    async def get_transcript(self, session_id: str) -> list[dict[str, Any]]:
        """Return the turns of a conversation, oldest first; an empty list if there are none."""
        return await _read_turns(self._namespace(session_id))

    # ---- subscriptions

    async def subscribe(self, session_id: str, callback: LatestCallback, *, interval_s: float = 0) -> None:
        """Call a function with the state of a session each time it changes, from now on.

        The function receives an `AudioSession`, `STTState`, `TTSState` or `VoiceConversationState`, the last
        without its parts and turns. While the function runs, newer states replace older ones that were not
        delivered.

        Args:
            session_id: The session.
            callback: A function or coroutine function; in blocking mode a function, called in a thread.
            interval_s: Minimum seconds between two calls.
        """
        self._binding.require_outside_transaction("subscribing")
        self._check_callback(callback, "callback")
        interval_s = check_interval("interval_s", interval_s)
        follower = LatestFollower(self._runner, self._namespace(session_id), callback, interval_s)
        await follower.find_start()
        self._subscriptions.start(Subscription(session_id, callback, [follower]))

    async def unsubscribe(self, session_id: str, callback: LatestCallback) -> bool:
        """Start no further call of a callback, and return whether it was subscribed."""
        ended = self._subscriptions.remove(session_id, callback)
        for follower in ended or ():
            await follower.end()
        return ended is not None

    # ---- helpers

    async def _get(self, session_id: str, what: str) -> Any:
        speech = self._namespace(session_id)
        return await speech.get(what)

    async def _clean(self, namespace: Namespace, before: datetime) -> int:
        """Remove a session that has ended, with its conversation."""
        session = await self.get_session(namespace.id)
        if session is None or session.ended_at is None or session.ended_at >= before:
            return 0
        return int(await self._forget(namespace, [_TRANSCRIPT]))


async def _read(speech: Namespace, *names: str) -> Sequence[Any]:
    """Return documents of a session, None for an absent one."""
    keys = [speech.name(name) for name in names]
    found = await speech.space.documents.entries(*keys)
    return [found[key].value if key in found else None for key in keys]


def _require_session(speech: Namespace, session: AudioSession | None) -> AudioSession:
    if session is None:
        raise NotFoundError(f"session {speech.id!r} does not exist. Call create_session() first.")
    return session


def _reject_ended(session: AudioSession) -> None:
    if SESSION_STEPS.is_final(session.status):
        raise TransitionError(
            f"session {session.session_id!r} is {session.status.name} and accepts no updates",
            current=session.status.name,
            wanted=AudioSessionStatus.ACTIVE.name,
        )


async def _require_live(speech: Namespace) -> None:
    (session,) = await _read(speech, "session")
    _reject_ended(_require_session(speech, session))


async def _put_stt(speech: Namespace, state: STTState) -> None:
    session, before = await _read(speech, "session", "stt")
    _reject_ended(_require_session(speech, session))
    if before is not None:
        TRANSCRIPTION_STEPS.check_update(speech.id, before.status, state.status)
    await speech.put(state, "stt")


async def _put_tts(speech: Namespace, state: TTSState) -> None:
    await _require_live(speech)
    await speech.put(state, "tts")


async def _read_turns(speech: Namespace) -> list[dict[str, Any]]:
    try:
        checkout = await speech.space.history.checkout(speech.label(_TRANSCRIPT), load=[_TURNS])
    except NotFoundError:
        return []
    turns: list[dict[str, Any]] = checkout[_TURNS]
    return turns


async def _write_turns(speech: Namespace, turns: Sequence[Mapping[str, Any]]) -> bool:
    """Replace the transcript and return True, or return False if it continues after these turns."""
    known, branch = await _read_turns(speech), speech.label(_TRANSCRIPT)
    now = [dict(turn) for turn in turns]
    if now == known[: len(now)]:
        return len(now) == len(known)
    if known and now[: len(known)] == known:
        await speech.space.history.append(_TURNS, *now[len(known) :], branch=branch, message="go on")
        return True
    await speech.space.history.commit({_TURNS: now}, branch=branch, message="replace" if known else "begin")
    return True
