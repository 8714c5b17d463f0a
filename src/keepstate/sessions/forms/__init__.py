"""Forms of messages: how do the messages of one library become those of another?

`given` takes what is appended, `kinds` tells the form of a stored message, and `conversion` gives a context
in the form that is asked for. A message in that form already comes back as it is. Others are read into the
neutral parts of `turns` by `content`, `gemini` or `pydantic_ai`, and written by the module of the form.
"""
