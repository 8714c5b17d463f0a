"""Programs that tests start as processes of their own, each named by what it does."""

from pathlib import Path

PROCESSES = Path(__file__).parent
