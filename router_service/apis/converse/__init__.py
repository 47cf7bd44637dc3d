"""Amazon Bedrock's Converse API, in which only deployments are asked."""
