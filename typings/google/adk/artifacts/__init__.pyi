from google.adk.artifacts import artifact_util as artifact_util
