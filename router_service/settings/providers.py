"""Where providers serve their OpenAI-compatible APIs, and which variables hold their keys."""

from __future__ import annotations

import re
from collections.abc import Mapping

from router_service.settings.values import Frozen


class Provider(Frozen):
    """A provider's OpenAI-compatible address, and the variables that hold its key in LiteLLM."""

    api_base: str
    key_names: tuple[str, ...]


PROVIDERS: Mapping[str, Provider] = {
    name: Provider(api_base=api_base, key_names=tuple(keys.split()))
    for name, api_base, keys in (
        ("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
        (
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta/openai",
            "GEMINI_API_KEY GOOGLE_API_KEY",
        ),
        ("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
        ("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        (
            "together_ai",
            "https://api.together.xyz/v1",
            "TOGETHERAI_API_KEY TOGETHER_AI_API_KEY TOGETHER_API_KEY",
        ),
        ("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
        ("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
        ("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    )
}
# A bare name is sent to its maker alone: to guess wrong would show a key to the wrong provider.
BARE_NAMES = (
    (re.compile(r"(gpt-|chatgpt-|o\d|ft:)"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
)
