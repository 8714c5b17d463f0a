"""HOW does a person answer by a link? A page that shows nothing by itself, and the checks behind it.

`form` is the page, `handle` and `handle_blocking` read and answer for it, and `link_app` serves both by ASGI.
Links are made by `Space.approvals.link`.
"""

from keepstate.approval_links.answering import handle as handle
from keepstate.approval_links.answering import handle_blocking as handle_blocking
from keepstate.approval_links.form import form as form
from keepstate.approval_links.link_app import link_app as link_app

__all__ = ["form", "handle", "handle_blocking", "link_app"]
