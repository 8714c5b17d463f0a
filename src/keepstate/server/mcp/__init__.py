"""HOW does a model look into a store? By tools of the Model Context Protocol, over stdio or at `/mcp`.

API boundary: `McpServer` serves the tools of `tools.TOOLS` to the holder of a key. `serve_stdio` serves them
to the program that started this one.

Invariant: a tool has the right `read` or `write`, and is judged like an operation of the table. So no tool
answers an approval, or works on a task.
"""

from keepstate.server.mcp.mcp_server import McpServer as McpServer
from keepstate.server.mcp.mcp_server import serve_stdio as serve_stdio

__all__ = ["McpServer", "serve_stdio"]
