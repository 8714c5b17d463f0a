"""WHAT was said aloud? Speech sessions, utterances and transcripts."""
