"""Coverage-guided fuzzing of what reads stored bytes.

`python -m tests.crashes.fuzzing TARGET INPUTS SEED FOLDER`: atheris ends the process itself, with 0 after so
many inputs, with another code at the first that is answered by neither a value nor an error of ours. That
input then stands in the folder.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["keepstate"]):
    from keepstate import KeepstateError, KeyRing, SignedPickle
    from keepstate.engine.kernel.large_values import parse_manifest
    from keepstate.engine.queue.tasks import decode_record
    from keepstate.stores.file.frames import Head, frames
    from keepstate.stores.redis.encoding import decode_changes
    from keepstate.stores.wrappers.sealing import Sealer
    from keepstate.testing.clocks import ManualClock
    from keepstate.values import codec
    from keepstate.values.key import unpack
    from keepstate.values.types import join_pickle

from tests.formats.format_1 import KEYS, VALUES

HEAD = Head("msgpack", bytes(8))
PICKLES = SignedPickle(bytes(32), allow=[])
SEALER = Sealer(KeyRing(bytes(32)), bytes(16), ManualClock())


def read_value(data: bytes) -> None:
    for read in (codec.decode, codec.to_builtin):
        try:
            read(codec.PLAIN + data)
        except KeepstateError:
            continue


def read_stored(data: bytes) -> None:
    codec.decode(data)


def read_key(data: bytes) -> None:
    unpack(data)


def read_frames(data: bytes) -> None:
    list(frames(HEAD, bytes(HEAD) + HEAD.frame(data[:20], len(bytes(HEAD))) + data, "state.keep"))
    Head.of(b"keepstate journal " + data, "state.keep")


def read_records(data: bytes) -> None:
    list(decode_changes(7, data))
    parse_manifest(b"\xd7" + data, "a value")
    decode_record(data, "a task")


def read_sealed(data: bytes) -> None:
    SEALER.open("s", b"\x01k", data)


def read_pickle(data: bytes) -> None:
    PICKLES._load(join_pickle("a.Class", data))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "values": read_value,
    "stored": read_stored,
    "keys": read_key,
    "frames": read_frames,
    "records": read_records,
    "sealed": read_sealed,
    "pickles": read_pickle,
}
LONGEST_S = 10
MOST_MIB = 1024


def corpus(folder: Path) -> None:
    """Write what to begin with: bytes that really are stored."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, (_, written) in enumerate([*VALUES, *KEYS]):
        (folder / f"vector-{place}").write_bytes(bytes.fromhex(written))


def main(target: str, inputs: str, seed: str, folder: str) -> None:
    """Fuzz one target."""
    read = TARGETS[target]

    def survives(data: bytes) -> None:
        try:
            read(data)
        except KeepstateError:
            return

    corpus(Path(folder) / "corpus")
    # Linux hands a parent's peak of memory on to the process that it starts, and the fuzzer judges by the peak.
    most_mib = MOST_MIB + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    options = [f"-runs={inputs}", f"-seed={seed}", f"-timeout={LONGEST_S}", f"-rss_limit_mb={most_mib}"]
    options += [f"-artifact_prefix={folder}/", "-max_len=4096", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, f"{folder}/corpus"], survives)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
