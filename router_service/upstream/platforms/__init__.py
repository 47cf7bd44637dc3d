"""Platforms with credentials that expire: Amazon Bedrock, Google Vertex AI and Entra ID."""
