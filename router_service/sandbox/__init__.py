"""An OpenAI-compatible provider that plays any model offline."""
