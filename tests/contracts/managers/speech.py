"""`SpeechStateManager`: sessions whose steps are checked, and conversations whose turns are all kept."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError, TransitionError
from keepstate.managers.speech.manager import SpeechStateManager
from keepstate.managers.speech.records import (
    SESSION_STEPS,
    TRANSCRIPTION_STEPS,
    AudioSessionStatus,
    StreamingMode,
    STTState,
    TranscriptionStatus,
    TTSState,
    VoiceConversationState,
)
from tests.contracts.managers.agents import AWKWARD_IDS
from tests.contracts.managers.stage import ManagerStage

CREATED, ACTIVE, PAUSED = AudioSessionStatus.CREATED, AudioSessionStatus.ACTIVE, AudioSessionStatus.PAUSED
ENDED, FAILED = AudioSessionStatus.ENDED, AudioSessionStatus.FAILED
TRANSCRIBING = TranscriptionStatus.TRANSCRIBING
HELLO, HI = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}


class SpeechContract(ManagerStage):
    """What a `SpeechStateManager` does, whatever it is kept in."""

    def speech(self) -> SpeechStateManager:
        return self.made(SpeechStateManager)

    async def begun(self) -> SpeechStateManager:
        speech = self.speech()
        await speech.create_session("voice", session_id="s")
        return speech

    # ---- sessions

    async def test_a_session_comes_back_as_it_was_created(self) -> None:
        speech = self.speech()
        config = {"stt_provider": "openai", "language": "en-US", "rate": 16_000}
        id = await speech.create_session("voice", StreamingMode.BIDIRECTIONAL, config)
        other = await speech.create_session("voice")
        session = await self.speech().get_session(id)

        assert session is not None and id != other
        assert (session.session_type, session.streaming_mode) == ("voice", StreamingMode.BIDIRECTIONAL)
        assert (session.config, session.status) == (config, CREATED)
        assert session.created_at is not None and session.created_at.tzinfo is not None
        assert await speech.get_session("none") is None

    async def test_an_id_is_taken_once(self) -> None:
        speech = await self.begun()

        with pytest.raises(AlreadyExistsError):
            await speech.create_session("voice", session_id="s")

    async def test_statuses_follow_the_table(self) -> None:
        speech = self.speech()
        ways = {CREATED: [], ACTIVE: [ACTIVE], PAUSED: [ACTIVE, PAUSED], ENDED: [ENDED], FAILED: [FAILED]}
        for before, way in ways.items():
            for after in AudioSessionStatus:
                id = await speech.create_session("voice", session_id=f"{before.name} {after.name}")
                for step in way:
                    await speech.update_session_status(id, step)
                if before is after or SESSION_STEPS.allows(before, after):
                    assert (await speech.update_session_status(id, after)).status is after
                    continue
                with pytest.raises(TransitionError) as refused:
                    await speech.update_session_status(id, after)
                assert before.name in str(refused.value) and after.name in str(refused.value)

        ended = {session.session_id for session in await speech.list_sessions(ENDED)}
        assert {"ENDED CREATED", "ACTIVE ENDED", "ENDED ENDED"} <= ended

    async def test_a_session_ends_once_and_nothing_is_said_of_it_then(self) -> None:
        speech = await self.begun()
        await speech.update_tts_state(TTSState("s", ["Hello!"], is_speaking=True))
        ended = await speech.end_session(session_id="s", reason="user_ended")
        again = await speech.end_session("s", "user_ended")
        said = await speech.get_tts_state("s")

        assert ended == again and (ended.status, ended.reason) == (ENDED, "user_ended")
        assert ended.ended_at is not None and said is not None and not said.is_speaking
        for change in (
            speech.end_session("s", "other"),
            speech.update_stt_state(STTState("s")),
            speech.update_tts_state(TTSState("s")),
            speech.update_conversation_state(VoiceConversationState("s")),
            speech.add_turn("s", "user", "?"),
        ):
            with pytest.raises(TransitionError):
                await change

    async def test_what_was_never_created_cannot_be_told_of(self) -> None:
        speech = self.speech()
        for change in (
            speech.update_session_status("s", ACTIVE),
            speech.end_session("s"),
            speech.update_stt_state(STTState("s")),
            speech.update_tts_state(TTSState("s")),
            speech.add_turn("s", "user", "?"),
        ):
            with pytest.raises(NotFoundError):
                await change

        assert await speech.get_stt_state("s") is None and await speech.get_tts_state("s") is None
        assert await speech.get_conversation_state("s") is None and await speech.get_transcript("s") == []

    # ---- what is heard and said

    async def test_what_is_heard_and_said_comes_back(self) -> None:
        speech = await self.begun()
        heard = STTState("s", TRANSCRIBING, 45_000, 0.6, "Hello, I would like to...", confidence=1)
        said = TTSState("s", ["Hello! How can I help you today?"], 12_000, 8_000, is_speaking=True)
        await speech.update_stt_state(heard)
        await speech.update_tts_state(said)

        assert await speech.get_stt_state("s") == heard and await speech.get_tts_state("s") == said
        for wrong in (STTState("s", transcription_progress=1.5), STTState("s", audio_received_bytes=-1)):
            with pytest.raises(InvalidError):
                await speech.update_stt_state(wrong)
        with pytest.raises(InvalidError):
            await speech.update_tts_state(heard)  # type: ignore[arg-type]  # wrong on purpose

    async def test_utterances_follow_the_table(self) -> None:
        speech = self.speech()
        for before in TranscriptionStatus:
            for after in TranscriptionStatus:
                id = await speech.create_session("voice", session_id=f"{before.name} {after.name}")
                await speech.update_stt_state(STTState(id, before))
                if before is after or TRANSCRIPTION_STEPS.allows(before, after):
                    await speech.update_stt_state(STTState(id, after))
                    continue
                with pytest.raises(TransitionError):
                    await speech.update_stt_state(STTState(id, after))

        assert not TRANSCRIPTION_STEPS.allows(TranscriptionStatus.COMPLETED, TranscriptionStatus.FAILED)

    # ---- conversations

    async def test_a_conversation_comes_back_with_all_its_parts(self) -> None:
        speech = await self.begun()
        state = VoiceConversationState(
            session_id="s",
            turn_count=5,
            current_speaker="user",
            stt_state=STTState("s", TRANSCRIBING),
            tts_state=TTSState("s", ["Hi!"]),
            transcript=[HELLO, HI],
        )
        await speech.update_conversation_state(state)
        found = await self.speech().get_conversation_state("s")
        await speech.update_stt_state(STTState("s", TRANSCRIBING, 7))
        later = await speech.get_conversation_state("s")

        assert found == state
        assert later is not None and later.stt_state == STTState("s", TRANSCRIBING, 7)
        with pytest.raises(InvalidError, match="stt_state"):
            await speech.update_conversation_state(VoiceConversationState("s", stt_state=STTState("t")))

    async def test_a_turn_that_is_no_dict_is_refused_by_its_place(self) -> None:
        speech = await self.begun()
        for wrong in ("x", 1, None):
            turns: list[Any] = [HELLO, wrong]
            with pytest.raises(InvalidError, match=r"`transcript\[1\]` is .*. Pass a dict"):
                await speech.update_conversation_state(VoiceConversationState("s", transcript=turns))

        assert await speech.get_transcript("s") == []

    async def test_turns_are_added_and_every_moment_is_kept(self) -> None:
        speech = await self.begun()
        await speech.update_conversation_state(VoiceConversationState("s", transcript=[HELLO]))
        count = await speech.add_turn("s", "assistant", "Hi!")
        await speech.update_conversation_state(VoiceConversationState("s", transcript=[HELLO, HI, HELLO]))
        edited = [{"role": "user", "content": "Hallo"}]
        await speech.update_conversation_state(VoiceConversationState("s", 9, transcript=edited))
        await speech.add_turn("s", "assistant", "Hi!", seconds=0.7)

        assert count == 1
        assert await speech.get_transcript("s") == [*edited, {**HI, "seconds": 0.7}]
        folder = speech._namespace("s")  # pyright: ignore[reportPrivateUsage]
        history, branch = folder.space.history, folder.label("transcript")
        moments = [(await history.checkout(each))["turns"] async for each in history.log(branch)]
        assert [len(turns) for turns in moments] == [2, 1, 3, 2, 1]

    async def test_a_state_that_was_read_before_turns_came_takes_none_away(self) -> None:
        speech = await self.begun()
        await speech.add_turn("s", "user", "Hello")
        old = await speech.get_conversation_state("s")
        await speech.add_turn("s", "assistant", "Hi!")
        assert old is not None
        await speech.update_conversation_state(replace(old, metadata={"mood": "good"}))
        await speech.update_conversation_state(VoiceConversationState("s", current_speaker="user"))

        found = await speech.get_conversation_state("s")
        assert found is not None and (found.turn_count, found.current_speaker) == (2, "user")
        assert [turn["content"] for turn in found.transcript] == ["Hello", "Hi!"]

    async def test_turns_of_many_at_once_are_all_kept(self) -> None:
        await self.begun()
        speeches = [self.speech() for _ in range(3)]

        async def talk(number: int) -> None:
            for turn in range(5):
                await speeches[number].add_turn("s", f"speaker {number}", str(turn))

        await self.together(*(talk(number) for number in range(3)))

        turns = await speeches[0].get_transcript("s")
        state = await speeches[0].get_conversation_state("s")
        assert state is not None and state.turn_count == len(turns) == 15
        for number in range(3):
            said = [turn["content"] for turn in turns if turn["role"] == f"speaker {number}"]
            assert said == ["0", "1", "2", "3", "4"]

    # ---- being told

    async def test_who_is_slow_is_told_how_things_stand(self) -> None:
        speech, other = await self.begun(), self.speech()
        told: list[Any] = []
        await speech.subscribe("s", told.append, interval_s=0.1)
        for number in range(60):
            await other.update_stt_state(STTState("s", TRANSCRIBING, number))
        await other.update_session_status("s", ACTIVE)
        for _ in range(200):
            if told and getattr(told[-1], "status", None) is ACTIVE:
                break
            await self.pass_time(20)

        heard = [state.audio_received_bytes for state in told if isinstance(state, STTState)]
        assert heard[-1] == 59 and heard == sorted(heard) and len(heard) < 50
        assert await speech.unsubscribe("s", told.append) and not await speech.unsubscribe("s", told.append)
        before = len(told)
        await other.update_session_status("s", PAUSED)
        await self.pass_time(50)
        assert len(told) == before

    async def test_a_callback_that_fails_harms_nobody(self) -> None:
        speech = await self.begun()
        told: list[Any] = []

        def fail(state: Any) -> None:
            raise ZeroDivisionError

        await speech.subscribe("s", fail)
        await speech.subscribe("s", told.append)
        await speech.update_session_status("s", ACTIVE)
        for _ in range(200):
            if told:
                break
            await self.pass_time(10)

        assert told == [await speech.get_session("s")]

    async def test_a_session_is_deleted_with_its_conversation(self) -> None:
        speech = self.speech()
        for id in ("a", "b"):
            await speech.create_session("voice", session_id=id)
            await speech.add_turn(id, "user", id)
        deleted = [await speech.delete_session("a") for _ in range(2)]

        assert deleted == [True, False] and await speech.get_session("a") is None
        assert [each.session_id for each in await speech.list_sessions()] == ["b"]
        await speech.create_session("voice", session_id="a")
        assert await speech.get_transcript("a") == []
        assert [turn["content"] for turn in await speech.get_transcript("b")] == ["b"]

    # ---- all sessions

    async def test_no_session_touches_another(self) -> None:
        speech = self.speech()
        for id in AWKWARD_IDS:
            await speech.create_session(id, session_id=id)
            await speech.add_turn(id, "user", id)
        await speech.end_session("1")

        live = await speech.list_sessions(CREATED)
        assert sorted(session.session_id for session in live) == sorted(AWKWARD_IDS[1:])
        for id in AWKWARD_IDS:
            assert await speech.get_transcript(id) == [{"role": "user", "content": id}]

    async def test_cleanup_removes_sessions_that_are_over(self) -> None:
        speech = await self.begun()
        await speech.create_session("voice", session_id="on")
        await speech.add_turn("s", "user", "Hello")
        await speech.end_session("s")
        kept = await speech.cleanup(older_than=timedelta(hours=1))
        await self.pass_time(20)
        removed = await speech.cleanup(older_than=timedelta(0))

        assert (kept, removed) == (0, 1)
        assert await speech.get_session("s") is None and await speech.get_transcript("s") == []
        assert [session.session_id for session in await speech.list_sessions()] == ["on"]

    # ---- a plain model

    async def test_a_session_does_what_a_plain_model_does(self) -> None:
        for seed in range(3):
            speech, dice = self.speech(), random.Random(seed)
            id = await speech.create_session("voice")
            status, turns = CREATED, list[dict[str, str]]()
            for step in range(30):
                wanted = dice.choice(list(AudioSessionStatus)[: 3 if step < 25 else 5])
                over = SESSION_STEPS.is_final(status)
                try:
                    if dice.random() < 0.5:
                        await speech.add_turn(id, "user", str(step))
                        turns.append({"role": "user", "content": str(step)})
                    else:
                        await speech.update_session_status(id, wanted)
                        assert status is wanted or SESSION_STEPS.allows(status, wanted)
                        status = wanted
                        over = False
                except TransitionError:
                    assert over or not SESSION_STEPS.allows(status, wanted)
                    continue
                assert not over

            session = await speech.get_session(id)
            assert session is not None and session.status is status
            assert await speech.get_transcript(id) == turns
