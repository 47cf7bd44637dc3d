"""Who may call the gateway: API keys and what they allow."""
