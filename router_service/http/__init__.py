"""The HTTP surface, in OpenAI's form."""
