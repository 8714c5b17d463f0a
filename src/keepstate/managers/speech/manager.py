"""Speech sessions: what is heard, what is said, and the conversation as a whole.

A session has a document for itself and one each for what is heard, what is said and the conversation, so that
fast updates of one disturb no other. The turns are a branch of the space's history: a turn costs the same
however long the conversation is, and how it stood at each turn can be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, Final

from keepstate.engine.kernel.arguments import check_text, require_instance
from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError, TransitionError
from keepstate.managers.binding import Folder
from keepstate.managers.latest_value import Latest, LatestCallback
from keepstate.managers.manager import Manager
from keepstate.managers.names import new_id
from keepstate.managers.records import admit_record
from keepstate.managers.sizes import admit_interval
from keepstate.managers.speech.records import (
    SESSION_STEPS,
    TRANSCRIPTION_STEPS,
    AudioSession,
    AudioSessionStatus,
    StreamingMode,
    STTState,
    TTSState,
    VoiceConversationState,
    admit_stt,
    admit_tts,
)

_TRANSCRIPT: Final = "transcript"
_TURNS: Final = "turns"


class SpeechStateManager(Manager):
    """Speech sessions, each in its space `speech/<id>`.

    What is said of a session that has ended raises `TransitionError`, and of one that was never created
    `NotFoundError`.

    Args:
        persistence: Where to keep sessions; see `StateManager`.
        url: The URL, if `persistence` names a kind of store.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: Instead: the space or transaction to keep them in.
    """

    _kind: ClassVar[str] = "speech"
    _records: bool = False

    @cached_property
    def _subscriptions(self) -> list[Latest]:
        return []

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_subscriptions": []}

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
            session_type: What it is for, in the application's words.
            streaming_mode: Which way audio streams.
            config: Whatever the application wants to keep with it.
            session_id: Its id; without it, a new one.

        Raises:
            AlreadyExistsError: There is a session of this id.
        """
        admit_record("streaming_mode", streaming_mode, StreamingMode)
        if config is not None:
            require_instance("config", config, Mapping)
        id = new_id(self._clock) if session_id is None else session_id
        session = AudioSession(
            id, check_text("session_type", session_type), streaming_mode, dict(config or {})
        )

        async def work(speech: Folder) -> None:
            if await speech.space.documents.get(speech.name("session")) is not None:
                raise AlreadyExistsError(f"session {id!r} is there already; choose another id, or none")
            kept = replace(session, created_at=await speech.space.now())
            await speech.space.documents.put(speech.name("session"), kept)

        await self._together(self._folder(id), work, message="create the session")
        return id

    async def get_session(self, session_id: str) -> AudioSession | None:
        """Return a session, or None if there is none of this id."""
        session: AudioSession | None = await self._get(session_id, "session")
        return session

    async def list_sessions(self, status: AudioSessionStatus | None = None) -> list[AudioSession]:
        """Return the sessions, by id; only those of a status, if one is given."""
        if status is not None:
            admit_record("status", status, AudioSessionStatus)
        found = [await self.get_session(id) for id in await self._ids()]
        return [each for each in found if each is not None and status in (None, each.status)]

    async def update_session_status(self, session_id: str, status: AudioSessionStatus) -> AudioSession:
        """Say where a session stands, and return it; the same status again does nothing.

        Raises:
            TransitionError: The status cannot follow the present one.
        """
        admit_record("status", status, AudioSessionStatus)
        return await self._go_on(session_id, status, None)

    async def end_session(self, session_id: str, reason: str | None = None) -> AudioSession:
        """End a session, and return it; nothing is being said in it from then on.

        Again for the same reason does nothing.

        Raises:
            TransitionError: It has failed, or ended for another reason.
        """
        return await self._go_on(session_id, AudioSessionStatus.ENDED, reason)

    async def delete_session(self, session_id: str) -> bool:
        """Remove a session with its conversation, and return whether there was one."""
        return await self._forget(self._folder(session_id), [_TRANSCRIPT])

    async def _go_on(self, session_id: str, status: AudioSessionStatus, reason: str | None) -> AudioSession:
        async def work(speech: Folder) -> AudioSession:
            session, tts = await _read(speech, "session", "tts")
            session = _need(speech, session)
            if session.status is status:
                if SESSION_STEPS.is_final(status) and reason not in (None, session.reason):
                    raise TransitionError(
                        f"session {speech.id!r} has ended already, because of {session.reason!r}",
                        current=status.name,
                        wanted=status.name,
                    )
                return session
            SESSION_STEPS.check(speech.id, session.status, status)
            session = replace(session, status=status)
            if SESSION_STEPS.is_final(status):
                session = replace(session, reason=reason, ended_at=await speech.space.now())
                if tts is not None and tts.is_speaking:
                    await speech.space.documents.put(speech.name("tts"), replace(tts, is_speaking=False))
            await speech.space.documents.put(speech.name("session"), session)
            return session

        return await self._together(self._folder(session_id), work, message=f"session is {status.value}")

    # ---- what is heard and said

    async def update_stt_state(self, stt_state: STTState) -> None:
        """Say what is heard, in place of what was said before.

        Raises:
            TransitionError: The status cannot follow the present one, or the session has ended.
        """
        admit_stt(stt_state)
        await self._together(self._folder(stt_state.session_id), lambda speech: _put_stt(speech, stt_state))

    async def get_stt_state(self, session_id: str) -> STTState | None:
        """Return what is heard, or None if nobody has said."""
        state: STTState | None = await self._get(session_id, "stt")
        return state

    async def update_tts_state(self, tts_state: TTSState) -> None:
        """Say what is said, in place of what was said before.

        Raises:
            TransitionError: The session has ended.
        """
        admit_tts(tts_state)
        await self._together(self._folder(tts_state.session_id), lambda speech: _put_tts(speech, tts_state))

    async def get_tts_state(self, session_id: str) -> TTSState | None:
        """Return what is said, or None if nobody has said."""
        state: TTSState | None = await self._get(session_id, "tts")
        return state

    # ---- the conversation

    async def update_conversation_state(self, conversation_state: VoiceConversationState) -> None:
        """Say how a conversation stands as a whole, with what is heard and said if that is in it.

        Turns that it has more are added to the transcript. Where it has only the first ones, or none, others
        have added turns since: they stay, and so does a higher `turn_count`. Where a turn differs the
        transcript is replaced, and its history keeps what it was. To add a turn alone, `add_turn` costs less.

        Raises:
            TransitionError: The session has ended, or what is heard cannot follow what was.
        """
        state = conversation_state
        admit_record("conversation_state", state, VoiceConversationState)
        parts: list[tuple[str, STTState | TTSState]] = []
        if state.stt_state is not None:
            parts.append(("stt_state", admit_stt(state.stt_state)))
        if state.tts_state is not None:
            parts.append(("tts_state", admit_tts(state.tts_state)))
        for name, part in parts:
            if part.session_id != state.session_id:
                raise InvalidError(f"`{name}` is of session {part.session_id!r}, not {state.session_id!r}")

        async def work(speech: Folder) -> None:
            await _admit_live(speech)
            if state.stt_state is not None:
                await _put_stt(speech, state.stt_state)
            if state.tts_state is not None:
                await _put_tts(speech, state.tts_state)
            count = state.turn_count
            if not await _write_turns(speech, state.transcript):
                (before,) = await _read(speech, "conversation")
                count = max(count, before.turn_count if before else 0)
            kept = replace(state, stt_state=None, tts_state=None, transcript=[], turn_count=count)
            await speech.space.documents.put(speech.name("conversation"), kept)

        await self._together(self._folder(state.session_id), work)

    async def add_turn(self, session_id: str, role: str, content: str, **more: Any) -> int:
        """Add a turn to a conversation and return how many it has; costs the same however many there are.

        Args:
            session_id: Which session.
            role: Whose turn it was.
            content: What was said.
            more: Whatever else belongs to the turn.
        """
        turn = {"role": check_text("role", role), "content": check_text("content", content), **more}

        async def work(speech: Folder) -> int:
            await _admit_live(speech)
            (kept,) = await _read(speech, "conversation")
            state = kept or VoiceConversationState(speech.id)
            state = replace(state, turn_count=state.turn_count + 1, current_speaker=role)
            await speech.space.documents.put(speech.name("conversation"), state)
            branch = speech.label(_TRANSCRIPT)
            await speech.space.history.append(_TURNS, turn, branch=branch, message=f"turn of {role}"[:200])
            count: int = state.turn_count
            return count

        return await self._together(self._folder(session_id), work)

    async def get_conversation_state(self, session_id: str) -> VoiceConversationState | None:
        """Return how a conversation stands, with all its parts and turns, or None if nobody has said."""
        speech = self._folder(session_id)
        state, stt, tts = await _read(speech, "conversation", "stt", "tts")
        if state is None:
            return None
        whole: VoiceConversationState = replace(
            state, stt_state=stt, tts_state=tts, transcript=await _turns(speech)
        )
        return whole

    async def get_transcript(self, session_id: str) -> list[dict[str, Any]]:
        """Return the turns of a conversation, in order; none if there are none."""
        return await _turns(self._folder(session_id))

    # ---- being told

    async def subscribe(self, session_id: str, callback: LatestCallback, *, interval_s: float = 0) -> None:
        """Call a function with how a session stands, from now on, when that changes.

        It gets an `AudioSession`, `STTState`, `TTSState` or `VoiceConversationState`, the last without its
        parts and turns. While it is at work, newer states replace older ones that it was not told yet.

        Args:
            session_id: Which session.
            callback: A function or coroutine function; in blocking use a function, called in a thread.
            interval_s: For how long it is left alone after it was told, in seconds.
        """
        self._place.require_outside_transaction("subscribing")
        self._refuse_coroutine(callback, "callback")
        latest = Latest(
            self._runner, self._folder(session_id), callback, admit_interval("interval_s", interval_s)
        )
        await latest.begin()
        self._subscriptions.append(latest)

    async def unsubscribe(self, session_id: str, callback: LatestCallback) -> bool:
        """Let no further call of the callback start, and return whether it was subscribed."""
        ended = [
            each for each in self._subscriptions if each.subject == session_id and each.callback == callback
        ]
        self._subscriptions = [each for each in self._subscriptions if each not in ended]
        for each in ended:
            await each.end()
        return bool(ended)

    async def close(self) -> None:
        """End subscriptions, and let go of the store."""
        ending, self._subscriptions = self._subscriptions, []
        try:
            for each in ending:
                await each.end()
        finally:
            await super().close()

    # ---- what it is made of

    async def _get(self, session_id: str, what: str) -> Any:
        speech = self._folder(session_id)
        return await speech.space.documents.get(speech.name(what))

    async def _clean(self, folder: Folder, before: datetime) -> int:
        """Remove a session that is over, with its conversation."""
        session = await self.get_session(folder.id)
        if session is None or session.ended_at is None or session.ended_at >= before:
            return 0
        return int(await self._forget(folder, [_TRANSCRIPT]))


async def _read(speech: Folder, *names: str) -> Sequence[Any]:
    """Return documents of a session, None for an absent one."""
    places = [speech.name(name) for name in names]
    found = await speech.space.documents.entries(*places)
    return [found[place].value if place in found else None for place in places]


def _need(speech: Folder, session: AudioSession | None) -> AudioSession:
    if session is None:
        raise NotFoundError(f"there is no session {speech.id!r}; create_session makes one")
    return session


def _refuse_over(session: AudioSession) -> None:
    if SESSION_STEPS.is_final(session.status):
        raise TransitionError(
            f"session {session.session_id!r} is {session.status.name}, and nothing is said of it any more",
            current=session.status.name,
            wanted=AudioSessionStatus.ACTIVE.name,
        )


async def _admit_live(speech: Folder) -> None:
    (session,) = await _read(speech, "session")
    _refuse_over(_need(speech, session))


async def _put_stt(speech: Folder, state: STTState) -> None:
    session, before = await _read(speech, "session", "stt")
    _refuse_over(_need(speech, session))
    if before is not None and before.status is not state.status:
        TRANSCRIPTION_STEPS.check(speech.id, before.status, state.status)
    await speech.space.documents.put(speech.name("stt"), state)


async def _put_tts(speech: Folder, state: TTSState) -> None:
    await _admit_live(speech)
    await speech.space.documents.put(speech.name("tts"), state)


async def _turns(speech: Folder) -> list[dict[str, Any]]:
    try:
        checkout = await speech.space.history.checkout(speech.label(_TRANSCRIPT), load=[_TURNS])
    except NotFoundError:
        return []
    turns: list[dict[str, Any]] = checkout[_TURNS]
    return turns


async def _write_turns(speech: Folder, turns: Sequence[Mapping[str, Any]]) -> bool:
    """Let the transcript be these turns, and return True; False if it goes on behind them and stays."""
    known, branch = await _turns(speech), speech.label(_TRANSCRIPT)
    now = [dict(turn) for turn in turns]
    if now == known[: len(now)]:
        return len(now) == len(known)
    if known and now[: len(known)] == known:
        await speech.space.history.append(_TURNS, *now[len(known) :], branch=branch, message="go on")
        return True
    await speech.space.history.commit({_TURNS: now}, branch=branch, message="replace" if known else "begin")
    return True
