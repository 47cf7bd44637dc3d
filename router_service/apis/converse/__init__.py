"""Amazon Bedrock's Converse API, in which only deployments are asked."""

NAME = "converse"
"""The API's name in the registry and in sealed proofs of reasoning."""
