from typing import NamedTuple

from google.genai import types

class ParsedArtifactUri(NamedTuple):
    app_name: str
    user_id: str
    session_id: str | None
    filename: str
    version: int

def parse_artifact_uri(uri: str) -> ParsedArtifactUri | None: ...
def get_artifact_uri(
    app_name: str, user_id: str, filename: str, version: int, session_id: str | None = None
) -> str: ...
def is_artifact_ref(artifact: types.Part) -> bool: ...
def validate_artifact_reference_scope(
    *, app_name: str, user_id: str, session_id: str | None, parsed_uri: ParsedArtifactUri
) -> None: ...
def resolve_artifact_reference(
    *, file_uri: str, app_name: str, user_id: str, session_id: str | None, remaining_depth: int
) -> ParsedArtifactUri: ...
def validate_path_segment(value: str, field_name: str) -> None: ...
