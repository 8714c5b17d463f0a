"""Records of a speech session: the session, recognition, synthesis, and the conversation."""

from __future__ import annotations

from dataclasses import field
from datetime import datetime
from enum import Enum
from typing import Any, Final

from keepstate.engine.kernel.transitions import Transitions
from keepstate.errors import InvalidError
from keepstate.managers.arguments import require_counts
from keepstate.managers.records import check_record, record, stored_enum


@stored_enum("StreamingMode")
class StreamingMode(Enum):
    """The directions in which audio streams."""

    NONE = "none"
    INPUT = "input"
    OUTPUT = "output"
    BIDIRECTIONAL = "bidirectional"


@stored_enum("AudioSessionStatus")
class AudioSessionStatus(Enum):
    """The status of a session."""

    CREATED = "created"
    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"
    FAILED = "failed"


@stored_enum("TranscriptionStatus")
class TranscriptionStatus(Enum):
    """The status of the recognition of an utterance."""

    IDLE = "idle"
    LISTENING = "listening"
    TRANSCRIBING = "transcribing"
    COMPLETED = "completed"
    FAILED = "failed"


_A, _T = AudioSessionStatus, TranscriptionStatus

SESSION_STEPS: Final = Transitions(
    "speech session",
    {
        _A.CREATED: {_A.ACTIVE, _A.ENDED, _A.FAILED},
        _A.ACTIVE: {_A.PAUSED, _A.ENDED, _A.FAILED},
        _A.PAUSED: {_A.ACTIVE, _A.ENDED, _A.FAILED},
    },
)
"""Allowed transitions. ENDED and FAILED are final, and the same status again is not a transition."""

TRANSCRIPTION_STEPS: Final = Transitions(
    "transcription in session",
    {
        _T.IDLE: {_T.LISTENING, _T.TRANSCRIBING, _T.FAILED},
        _T.LISTENING: {_T.IDLE, _T.TRANSCRIBING, _T.COMPLETED, _T.FAILED},
        _T.TRANSCRIBING: {_T.IDLE, _T.LISTENING, _T.COMPLETED, _T.FAILED},
        _T.COMPLETED: {_T.IDLE, _T.LISTENING, _T.TRANSCRIBING},
        _T.FAILED: {_T.IDLE, _T.LISTENING, _T.TRANSCRIBING},
    },
)
"""Allowed transitions, from one utterance to the next. A session may start with any status."""


@record("AudioSession")
class AudioSession:
    """A speech session.

    Attributes:
        session_id: Id of the session.
        session_type: Type of the session, as the application names it.
        streaming_mode: Directions in which audio streams.
        config: Data of the application.
        status: Status of the session.
        created_at: Time of creation, by the store's clock.
        ended_at: Time of its end, by the store's clock.
        reason: Reason of its end.
    """

    session_id: str
    session_type: str
    streaming_mode: StreamingMode = StreamingMode.NONE
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    status: AudioSessionStatus = AudioSessionStatus.CREATED
    created_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None


@record("STTState")
class STTState:
    """The state of speech recognition.

    Attributes:
        session_id: The session.
        status: Status of the utterance.
        audio_received_bytes: Received audio.
        transcription_progress: Transcribed share, from 0 to 1.
        interim_transcript: Preliminary text.
        final_transcript: Final text.
        confidence: Confidence in the text, from 0 to 1.
        language: Language of the text.
        error: The last error.
    """

    session_id: str
    status: TranscriptionStatus = TranscriptionStatus.IDLE
    audio_received_bytes: int = 0
    transcription_progress: float = 0.0
    interim_transcript: str = ""
    final_transcript: str = ""
    confidence: float | None = None
    language: str | None = None
    error: str | None = None


@record("TTSState")
class TTSState:
    """The state of speech synthesis.

    Attributes:
        session_id: The session.
        text_queue: Texts that are still to be spoken, in order.
        audio_generated_bytes: Generated audio.
        audio_played_bytes: Played audio.
        is_speaking: Whether audio is being played.
        current_text: The text being spoken.
        voice: The voice.
        error: The last error.
    """

    session_id: str
    text_queue: list[str] = field(default_factory=list[str])
    audio_generated_bytes: int = 0
    audio_played_bytes: int = 0
    is_speaking: bool = False
    current_text: str | None = None
    voice: str | None = None
    error: str | None = None


@record("VoiceConversationState")
class VoiceConversationState:
    """The state of a conversation.

    Attributes:
        session_id: The session.
        turn_count: Number of turns, as the caller counts them.
        current_speaker: Speaker of the current turn.
        stt_state: State of the recognition; None keeps the stored one.
        tts_state: State of the synthesis; None keeps the stored one.
        transcript: The turns, in order; an empty list keeps the stored ones.
        metadata: Data of the application.
    """

    session_id: str
    turn_count: int = 0
    current_speaker: str | None = None
    stt_state: STTState | None = None
    tts_state: TTSState | None = None
    transcript: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


def check_stt(state: object) -> STTState:
    """Check the state of a recognition, and return it.

    Raises:
        InvalidError: It is not an `STTState`, or a number in it is out of range.
    """
    check_record("stt_state", state, STTState)
    assert isinstance(state, STTState)
    require_counts(state, "audio_received_bytes")
    for name in ("transcription_progress", "confidence"):
        share = getattr(state, name)
        if share is not None and not 0 <= share <= 1:
            raise InvalidError(f"`{name}` is {share!r}. Pass a number from 0 to 1.")
    return state


def check_tts(state: object) -> TTSState:
    """Check the state of a synthesis, and return it.

    Raises:
        InvalidError: It is not a `TTSState`, or a number in it is out of range.
    """
    check_record("tts_state", state, TTSState)
    assert isinstance(state, TTSState)
    require_counts(state, "audio_generated_bytes", "audio_played_bytes")
    return state
