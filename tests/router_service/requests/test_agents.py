"""Sessions of coding agents are recognized by their tools and their client."""

from __future__ import annotations

import pytest

from router_service.requests.agents import is_coding_session


@pytest.mark.parametrize(
    ("tools", "user_agent", "is_session"),
    [
        (("Bash", "Edit", "Read", "WebFetch"), "claude-cli/2.0.1 (external, cli)", True),
        (("Read", "Grep"), "claude-cli/2.0.1 (external, cli)", True),
        (("Read", "Grep"), "my-app/1.0", False),
        (("mcp__crm__find_customer",), "claude-cli/2.0.1 (external, sdk-py)", False),
        (("shell", "apply_patch", "update_plan"), "codex_cli_rs/0.60", True),
        (("exec_command", "write_stdin", "view_image"), "", True),
        (("bash", "get_weather"), "", False),
        (("get_weather", "find_flight"), "", False),
        ((), "claude-cli/2.0.1 (external, cli)", False),
    ],
)
def test_sessions_are_recognized_by_tools_and_client(
    tools: tuple[str, ...], user_agent: str, is_session: bool
) -> None:
    """A shell with files is enough; a known client needs one of them; any client needs tools."""
    assert is_coding_session(tools, user_agent) is is_session
