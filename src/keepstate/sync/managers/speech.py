"""Blocking twins of `keepstate.managers.speech.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from keepstate._finish import finish
from keepstate.managers.backends import Backend
from keepstate.managers.latest_value import LatestCallback
from keepstate.managers.speech import manager as managers
from keepstate.managers.speech.records import (
    AudioSession,
    AudioSessionStatus,
    StreamingMode,
    STTState,
    TTSState,
    VoiceConversationState,
)
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.managers.manager import Manager
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import inner_of


class SpeechStateManager(Manager[managers.SpeechStateManager]):
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

    def __init__(
        self,
        *,
        persistence: str | Backend | Store | Keepstate | None = None,
        url: str | None = None,
        redis_url: str | None = None,
        file_path: str | PathLike[str] | None = None,
        space: Space | Transaction | None = None,
    ) -> None:
        super().__init__(
            managers.SpeechStateManager(
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                url=url,
                redis_url=redis_url,
                file_path=file_path,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                _mode="blocking",
            )
        )

    def create_session(
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
        return finish(self._inner.create_session(session_type, streaming_mode, config, session_id=session_id))

    def get_session(self, session_id: str) -> AudioSession | None:
        """Return a session, or None if there is none of this id."""
        return finish(self._inner.get_session(session_id))

    def list_sessions(self, status: AudioSessionStatus | None = None) -> list[AudioSession]:
        """Return the sessions, by id; only those of a status, if one is given."""
        return finish(self._inner.list_sessions(status))

    def update_session_status(self, session_id: str, status: AudioSessionStatus) -> AudioSession:
        """Say where a session stands, and return it; the same status again does nothing.

        Raises:
            TransitionError: The status cannot follow the present one.
        """
        return finish(self._inner.update_session_status(session_id, status))

    def end_session(self, session_id: str, reason: str | None = None) -> AudioSession:
        """End a session, and return it; nothing is being said in it from then on.

        Again for the same reason does nothing.

        Raises:
            TransitionError: It has failed, or ended for another reason.
        """
        return finish(self._inner.end_session(session_id, reason))

    def delete_session(self, session_id: str) -> bool:
        """Remove a session with its conversation, and return whether there was one."""
        return finish(self._inner.delete_session(session_id))

    def update_stt_state(self, stt_state: STTState) -> None:
        """Say what is heard, in place of what was said before.

        Raises:
            TransitionError: The status cannot follow the present one, or the session has ended.
        """
        finish(self._inner.update_stt_state(stt_state))

    def get_stt_state(self, session_id: str) -> STTState | None:
        """Return what is heard, or None if nobody has said."""
        return finish(self._inner.get_stt_state(session_id))

    def update_tts_state(self, tts_state: TTSState) -> None:
        """Say what is said, in place of what was said before.

        Raises:
            TransitionError: The session has ended.
        """
        finish(self._inner.update_tts_state(tts_state))

    def get_tts_state(self, session_id: str) -> TTSState | None:
        """Return what is said, or None if nobody has said."""
        return finish(self._inner.get_tts_state(session_id))

    def update_conversation_state(self, conversation_state: VoiceConversationState) -> None:
        """Say how a conversation stands as a whole, with what is heard and said if that is in it.

        Turns that it has more are added to the transcript. Where it has only the first ones, or none, others
        have added turns since: they stay, and so does a higher `turn_count`. Where a turn differs the
        transcript is replaced, and its history keeps what it was. To add a turn alone, `add_turn` costs less.

        Raises:
            TransitionError: The session has ended, or what is heard cannot follow what was.
        """
        finish(self._inner.update_conversation_state(conversation_state))

    def add_turn(self, session_id: str, role: str, content: str, **more: Any) -> int:
        """Add a turn to a conversation and return how many it has; costs the same however many there are.

        Args:
            session_id: Which session.
            role: Whose turn it was.
            content: What was said.
            more: Whatever else belongs to the turn.
        """
        return finish(self._inner.add_turn(session_id, role, content, **more))

    def get_conversation_state(self, session_id: str) -> VoiceConversationState | None:
        """Return how a conversation stands, with all its parts and turns, or None if nobody has said."""
        return finish(self._inner.get_conversation_state(session_id))

    def get_transcript(self, session_id: str) -> list[dict[str, Any]]:
        """Return the turns of a conversation, in order; none if there are none."""
        return finish(self._inner.get_transcript(session_id))

    def subscribe(self, session_id: str, callback: LatestCallback, *, interval_s: float = 0) -> None:
        """Call a function with how a session stands, from now on, when that changes.

        It gets an `AudioSession`, `STTState`, `TTSState` or `VoiceConversationState`, the last without its
        parts and turns. While it is at work, newer states replace older ones that it was not told yet.

        Args:
            session_id: Which session.
            callback: A function or coroutine function; in blocking use a function, called in a thread.
            interval_s: For how long it is left alone after it was told, in seconds.
        """
        finish(self._inner.subscribe(session_id, callback, interval_s=interval_s))

    def unsubscribe(self, session_id: str, callback: LatestCallback) -> bool:
        """Let no further call of the callback start, and return whether it was subscribed."""
        return finish(self._inner.unsubscribe(session_id, callback))

    def close(self) -> None:
        """End subscriptions, and let go of the store."""
        finish(self._inner.close())
