"""Where providers serve their OpenAI-compatible APIs, and which variables hold their keys.

Names of providers and of variables are LiteLLM's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from router_service.settings.values import Frozen


class Provider(Frozen):
    """A provider's OpenAI-compatible address, and the variables that hold its key in LiteLLM.

    One without variables needs no key.
    """

    api_base: str
    key_names: tuple[str, ...]


PROVIDERS: Mapping[str, Provider] = {
    name: Provider(api_base=api_base, key_names=tuple(keys.split()))
    for name, api_base, keys in (
        ("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("text-completion-openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
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
            "TOGETHER_API_KEY TOGETHER_AI_API_KEY TOGETHERAI_API_KEY TOGETHER_AI_TOKEN",
        ),
        ("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
        ("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
        ("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY OR_API_KEY"),
        ("xai", "https://api.x.ai/v1", "XAI_API_KEY"),
        (
            "fireworks_ai",
            "https://api.fireworks.ai/inference/v1",
            "FIREWORKS_API_KEY FIREWORKS_AI_API_KEY FIREWORKSAI_API_KEY FIREWORKS_AI_TOKEN",
        ),
        ("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
        ("deepinfra", "https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
        ("sambanova", "https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
        ("nvidia_nim", "https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY"),
        ("ollama", "http://localhost:11434/v1", ""),
        ("ollama_chat", "http://localhost:11434/v1", ""),
        ("perplexity", "https://api.perplexity.ai", "PERPLEXITYAI_API_KEY PERPLEXITY_API_KEY"),
    )
}
# A bare name is sent to its maker alone: to guess wrong would show a key to the wrong provider.
BARE_NAMES = (
    (re.compile(r"(gpt-|chatgpt-|o\d|ft:|text-embedding-|dall-e-|whisper-|tts-)"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
)
BELOW_V1 = frozenset({"ollama", "ollama_chat", "anthropic"})
"""Providers whose `api_base` LiteLLM takes without the `/v1` that their compatible API is below."""
