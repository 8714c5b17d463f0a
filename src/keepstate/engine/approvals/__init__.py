"""HOW does work wait for a person? Approvals: questions that are asked once and settled once.

Use an approval for a decision of a person, and a task for the work that waits for it. Not an API boundary:
`Space.approvals` is.
"""
