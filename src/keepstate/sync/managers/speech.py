"""Blocking twins of `keepstate.managers.speech.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from keepstate._finish import finish
from keepstate.managers.callbacks import LatestCallback
from keepstate.managers.speech import manager as managers
from keepstate.managers.speech.records import (
    AudioSession,
    AudioSessionStatus,
    StreamingMode,
    STTState,
    TTSState,
    VoiceConversationState,
)
from keepstate.sync.managers.binding import ManagerStorage
from keepstate.sync.managers.manager import Manager
from keepstate.sync.twin import inner_options


class SpeechStateManager(Manager[managers.SpeechStateManager]):
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

    def __init__(self, **storage: Unpack[ManagerStorage]) -> None:
        super().__init__(managers.SpeechStateManager(**inner_options(storage)))

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
            session_type: Type of the session, as the application names it.
            streaming_mode: Directions in which audio streams.
            config: Data of the application.
            session_id: Id of the session; by default a new one.

        Raises:
            AlreadyExistsError: A session with this id exists.
        """
        return finish(self._inner.create_session(session_type, streaming_mode, config, session_id=session_id))

    def get_session(self, session_id: str) -> AudioSession | None:
        """Return a session, or None if there is none with this id."""
        return finish(self._inner.get_session(session_id))

    def list_sessions(self, status: AudioSessionStatus | None = None) -> list[AudioSession]:
        """Return all sessions, or those with a status, ordered by id."""
        return finish(self._inner.list_sessions(status))

    def update_session_status(self, session_id: str, status: AudioSessionStatus) -> AudioSession:
        """Set the status of a session, and return the session. The same status again does nothing.

        Raises:
            TransitionError: The new status cannot follow the current one.
        """
        return finish(self._inner.update_session_status(session_id, status))

    def end_session(self, session_id: str, reason: str | None = None) -> AudioSession:
        """End a session, and return it. Its synthesis is then not speaking.

        Ending it again for the same reason does nothing.

        Raises:
            TransitionError: The session has failed, or ended for another reason.
        """
        return finish(self._inner.end_session(session_id, reason))

    def delete_session(self, session_id: str) -> bool:
        """Remove a session with its conversation, and return whether it existed."""
        return finish(self._inner.delete_session(session_id))

    def update_stt_state(self, stt_state: STTState) -> None:
        """Replace the state of the recognition.

        Raises:
            TransitionError: The new status cannot follow the current one, or the session has ended.
        """
        finish(self._inner.update_stt_state(stt_state))

    def get_stt_state(self, session_id: str) -> STTState | None:
        """Return the state of the recognition, or None if there is none."""
        return finish(self._inner.get_stt_state(session_id))

    def update_tts_state(self, tts_state: TTSState) -> None:
        """Replace the state of the synthesis.

        Raises:
            TransitionError: The session has ended.
        """
        finish(self._inner.update_tts_state(tts_state))

    def get_tts_state(self, session_id: str) -> TTSState | None:
        """Return the state of the synthesis, or None if there is none."""
        return finish(self._inner.get_tts_state(session_id))

    def update_conversation_state(self, conversation_state: VoiceConversationState) -> None:
        """Replace the state of a conversation, with recognition and synthesis if they are in it.

        Additional turns are appended to the transcript. If the state has only the first turns, or none, the
        newer turns and a higher `turn_count` stay, because other callers have added them. If a turn differs,
        the transcript is replaced, and its history keeps the old one. To add one turn, `add_turn` costs less.

        Raises:
            TransitionError: The session has ended, or the status of the recognition cannot follow the current
                one.
        """
        finish(self._inner.update_conversation_state(conversation_state))

    def add_turn(self, session_id: str, role: str, content: str, **more: Any) -> int:
        """Add a turn to a conversation, and return the number of turns. The cost does not depend on it.

        Args:
            session_id: The session.
            role: Speaker of the turn.
            content: Text of the turn.
            more: Other fields of the turn.
        """
        return finish(self._inner.add_turn(session_id, role, content, **more))

    def get_conversation_state(self, session_id: str) -> VoiceConversationState | None:
        """Return a conversation with all its parts and turns, or None if there is none."""
        return finish(self._inner.get_conversation_state(session_id))

    def get_transcript(self, session_id: str) -> list[dict[str, Any]]:
        """Return the turns of a conversation, oldest first; an empty list if there are none."""
        return finish(self._inner.get_transcript(session_id))

    def subscribe(self, session_id: str, callback: LatestCallback, *, interval_s: float = 0) -> None:
        """Call a function with the state of a session each time it changes, from now on.

        The function receives an `AudioSession`, `STTState`, `TTSState` or `VoiceConversationState`, the last
        without its parts and turns. While the function runs, newer states replace older ones that were not
        delivered.

        Args:
            session_id: The session.
            callback: A function or coroutine function; in blocking mode a function, called in a thread.
            interval_s: Minimum seconds between two calls.
        """
        finish(self._inner.subscribe(session_id, callback, interval_s=interval_s))

    def unsubscribe(self, session_id: str, callback: LatestCallback) -> bool:
        """Start no further call of a callback, and return whether it was subscribed."""
        return finish(self._inner.unsubscribe(session_id, callback))
