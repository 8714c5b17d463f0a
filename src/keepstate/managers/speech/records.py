"""What is kept of a speech session: itself, what is heard, what is said, and the conversation."""

from __future__ import annotations

from dataclasses import field
from datetime import datetime
from enum import Enum
from typing import Any, Final

from keepstate.errors import InvalidError
from keepstate.managers.records import admit_counts, admit_record, member, record
from keepstate.managers.transitions import Transitions


@member("StreamingMode")
class StreamingMode(Enum):
    """Which way audio streams."""

    NONE = "none"
    INPUT = "input"
    OUTPUT = "output"
    BIDIRECTIONAL = "bidirectional"


@member("AudioSessionStatus")
class AudioSessionStatus(Enum):
    """Where a session stands."""

    CREATED = "created"
    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"
    FAILED = "failed"


@member("TranscriptionStatus")
class TranscriptionStatus(Enum):
    """What is becoming of an utterance."""

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
        _A.ENDED: set[AudioSessionStatus](),
        _A.FAILED: set[AudioSessionStatus](),
    },
)
"""What may follow what; the same status again is no step."""

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
"""What may follow what, from one utterance to the next. A session may begin with any."""


@record("AudioSession")
class AudioSession:
    """A speech session.

    Attributes:
        session_id: Its name.
        session_type: What it is for, in the application's words.
        streaming_mode: Which way audio streams.
        config: As it was given.
        status: Where it stands.
        created_at: When it was made, by the store's clock.
        ended_at: When it ended, by the store's clock.
        reason: Why it ended.
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
    """What is heard.

    Attributes:
        session_id: In which session.
        status: What is becoming of the utterance.
        audio_received_bytes: How much audio has come.
        transcription_progress: How much of it is transcribed, from 0 to 1.
        interim_transcript: What it seems to say so far.
        final_transcript: What it says.
        confidence: How sure that is, from 0 to 1.
        language: Which language it is in.
        error: What went wrong.
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
    """What is said.

    Attributes:
        session_id: In which session.
        text_queue: What is still to be said, in order.
        audio_generated_bytes: How much audio there is.
        audio_played_bytes: How much of it was played.
        is_speaking: Whether it is being played now.
        current_text: What is being said now.
        voice: Whose voice says it.
        error: What went wrong.
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
    """A conversation as a whole.

    Attributes:
        session_id: In which session.
        turn_count: How many turns there were, as the caller counts them.
        current_speaker: Whose turn it is.
        stt_state: What is heard; None leaves what is kept.
        tts_state: What is said; None leaves what is kept.
        transcript: The turns, in order; none leaves what is kept.
        metadata: Whatever the application wants to keep with it.
    """

    session_id: str
    turn_count: int = 0
    current_speaker: str | None = None
    stt_state: STTState | None = None
    tts_state: TTSState | None = None
    transcript: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


def admit_stt(state: object) -> STTState:
    """Return what is heard.

    Raises:
        InvalidError: It is no `STTState`, or a number in it cannot be.
    """
    admit_record("stt_state", state, STTState)
    assert isinstance(state, STTState)
    admit_counts(state, "audio_received_bytes")
    for name in ("transcription_progress", "confidence"):
        share = getattr(state, name)
        if share is not None and not 0 <= share <= 1:
            raise InvalidError(f"`{name}` is {share!r}; it is from 0 to 1")
    return state


def admit_tts(state: object) -> TTSState:
    """Return what is said.

    Raises:
        InvalidError: It is no `TTSState`, or a number in it cannot be.
    """
    admit_record("tts_state", state, TTSState)
    assert isinstance(state, TTSState)
    admit_counts(state, "audio_generated_bytes", "audio_played_bytes")
    return state
